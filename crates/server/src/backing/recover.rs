//! Recovers holders of striped files that lost their part with an earlier store, from the back end; and forgets parts that
//! vanished there.

use super::{Backing, BackingLayer, missing_in_backing};
use crate::file_homes::is_striped;
use forebay_model::{FileId, Incarnation, Layout, Result, ServerId, Span};
use forebay_store::{Batch, Body};
use forebay_wire::PeerRequest;
use std::sync::Arc;

impl BackingLayer {
    /// Holders that lost their part of a file of this authority, all of which is in the back end.
    pub(crate) fn to_recover(&self, file: FileId) -> Result<Vec<(ServerId, Incarnation)>> {
        let (Some(backing), Body::File { layout, incarnations, extent }) =
            (&self.backing, self.store.names().inode(file)?.body)
        else {
            return Ok(Vec::new());
        };
        let out = is_striped(&extent) && !extent.is_open() && extent.elsewhere == Some(0);
        if !out || !backing.knows(file)? || backing.mark(file).is_some() {
            return Ok(Vec::new());
        }
        let held = layout.servers.iter().zip(incarnations).filter(|(server, _)| **server != self.own);
        let replaced = held.filter_map(|(&server, then)| {
            let (now, _) = self.join_state.known(server)?;
            (now != then).then_some((server, now))
        });
        Ok(replaced.collect())
    }

    /// Has holders that lost their part of a file of this authority read it from the back end, if all of it is there.
    /// The caller holds the file's order lock.
    pub(crate) async fn recover_from_backing(self: &Arc<BackingLayer>, file: FileId) -> Result<()> {
        for (server, incarnation) in self.to_recover(file)? {
            let size = self.homes.extent(file)?.least.max(self.homes.held(file)?.size);
            self.peers.ask(server, PeerRequest::Reread { file, size: Some(size) }).await?;
            self.store.names().note_incarnation(file, server, incarnation)?;
        }
        Ok(())
    }

    /// Forgets that this server's part of a file was in the back end, or with `ask` only checks whether it could. The
    /// caller has suspended writes.
    pub(crate) fn forget_part(&self, file: FileId, layout: &Layout, ask: bool) -> Result<()> {
        let data = self.store.data();
        let counts = |span: Span| layout.pieces(span).any(|(server, _)| server == self.own);
        let mut batch = Batch::default();
        let ours = self.backing.as_ref().filter(|_| !ask && self.homes.is_authority(file));
        if ours.is_some() {
            Backing::forget(file, &mut batch);
        }
        let forgotten = match ask {
            true => data.is_here(file, counts)?,
            false => data.forget_backing(file, batch, counts)?,
        };
        if let Some(backing) = ours.filter(|_| forgotten) {
            backing.drop_mark(file);
        }
        if forgotten { Ok(()) } else { Err(missing_in_backing(file)) }
    }
}
