//! Who writes to files in the back end: ranges that are being written, leases of other servers' files, and direct
//! writes that are not synced yet. The drain and direct writes both write by these rules.
//!
//! **Invariant**: no two writes to the back end overlap (`range_locks`); a file of another authority is written with a
//! lease only (`leases`); a successful sync covers all earlier direct writes (`unsynced`).

mod leases;
mod opened;
mod range_locks;
mod route;
mod unsynced;

pub(crate) use leases::{RENEW, SuspendedWrites, WriteLeases};
pub(crate) use opened::Opened;
pub(crate) use range_locks::{Quiesced, RangeLocks, RangeReservation};
pub(crate) use route::RouteState;

use crate::direct::Routing;
use crate::opens::Opens;
use forebay_model::FileId;
use forebay_store::Store;
use parking_lot::Mutex;
use std::collections::HashSet;
use std::sync::Arc;

/// The writers to the back end, of this server.
pub(crate) struct Writers {
    store: Arc<Store>,
    opens: Arc<Opens>,
    pub(crate) range_locks: Arc<RangeLocks>,
    pub(crate) leases: WriteLeases,
    pub(crate) route: Arc<RouteState>,
    /// Files with direct writes of an earlier run of the server that were not synced since.
    left_over: Mutex<HashSet<FileId>>,
}

impl Writers {
    pub(crate) fn new(store: Arc<Store>, opens: Arc<Opens>, routing: Routing) -> Writers {
        Writers {
            store,
            opens,
            range_locks: Arc::default(),
            leases: WriteLeases::default(),
            route: Arc::new(RouteState::new(routing)),
            left_over: Mutex::default(),
        }
    }
}
