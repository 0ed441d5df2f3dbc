//! The back end below the buffer, with all that a change in both needs.

use super::Backing;
use crate::cluster::{JoinState, Peers, StripedFiles};
use crate::file_homes::FileHomes;
use crate::lifecycle::Lifecycle;
use crate::opens::Opens;
use crate::orphans::OrphanGrace;
use crate::per_user::UserBounds;
use crate::writers::Writers;
use forebay_model::ServerId;
use forebay_store::Store;
use std::sync::Arc;
use std::time::Duration;

/// The buffer and, if there is one, the back end as one file system.
pub(crate) struct BackingLayer {
    pub(crate) own: ServerId,
    pub(crate) store: Arc<Store>,
    pub(crate) backing: Option<Arc<Backing>>,
    pub(crate) homes: Arc<FileHomes>,
    pub(crate) join_state: Arc<JoinState>,
    pub(crate) peers: Arc<Peers>,
    pub(crate) striped: Arc<StripedFiles>,
    pub(crate) writers: Arc<Writers>,
    pub(crate) opens: Arc<Opens>,
    pub(crate) grace: Arc<OrphanGrace>,
    pub(crate) users: Arc<UserBounds>,
    pub(crate) life: Arc<Lifecycle>,
    /// How long a request waits for a place of its user.
    pub(crate) patience: Duration,
}
