//! Appends to files whose bytes several servers hold.
//!
//! The authority takes all bytes first. Then, while nobody else appends or cuts, it puts them behind the end piece by
//! piece, the first one first. Whoever dies over that leaves the beginning of what was appended or nothing of it, as a
//! file system of one machine does, and never a hole.

use super::Undone;
use crate::fence::Fence;
use crate::service::Service;
use forebay_model::{Error, ErrorKind, FileId, JobId, Layout, Result, ServerId, Span, Uid};
use forebay_store::{Body, Filled, MAX_FILE, Place};
use forebay_wire::{MAX_PUT, PeerRequest};
use std::sync::Arc;

/// Who writes to what.
pub(crate) struct Writer {
    pub(crate) file: FileId,
    pub(crate) uid: Uid,
    pub(crate) job: JobId,
}

impl Service {
    /// The layout of a file of ours, if others hold its bytes.
    pub(crate) fn shared_layout(&self, file: FileId) -> Result<Option<Layout>> {
        if self.is_alone() || self.members.members().authority(file) != self.config.server {
            return Ok(None);
        }
        match self.store.names().inode(file)?.body {
            Body::File { layout, .. } if layout.only() != Some(self.config.server) => Ok(Some(layout)),
            _ => Ok(None),
        }
    }

    /// Writes behind the end of a file of ours, and says where that was.
    pub(crate) async fn append_shared(
        self: &Arc<Service>,
        fence: &Arc<Fence>,
        writer: &Writer,
        layout: &Layout,
        bytes: &[u8],
    ) -> Result<u64, Undone> {
        let file = writer.file;
        let _order = self.afar.order(file).lock().await;
        let _pass = fence.pass()?;
        // Otherwise a cut that somebody has not heard of would come over what is appended now.
        self.tell_reshaped(file).await?;
        self.recover_from_behind(file).await?;
        let offset = self.length(file).await?;
        let whole = Span::at(offset, bytes.len() as u64).filter(|span| span.end <= MAX_FILE);
        let whole = whole.ok_or_else(|| Error::from(ErrorKind::TooLarge))?;
        for (server, span) in layout.pieces(whole).flat_map(|(server, span)| small(server, span)) {
            let piece = &bytes[(span.start - offset) as usize..(span.end - offset) as usize];
            let put = match server == self.config.server {
                true => tokio::task::block_in_place(|| self.put_here(writer, span.start, piece)),
                false => self.put_there(server, writer, span.start, piece).await,
            };
            match put {
                Ok(()) => {}
                // Nobody must try that again: something of it is there, or may be.
                Err(error) if is_unsure(&error) && (span.start > offset || server != self.config.server) => {
                    return Err(Undone::Unknown);
                }
                Err(error) => return Err(error.into()),
            }
        }
        Ok(offset)
    }

    async fn put_there(&self, server: ServerId, writer: &Writer, offset: u64, bytes: &[u8]) -> Result<()> {
        let &Writer { file, uid, job } = writer;
        let lost_below = self.lost_below(file, server)?;
        self.note_extent(file, |extent| extent.unsettled = true)?;
        let put = PeerRequest::Put { file, uid, job, offset, lost_below, bytes: bytes.to_vec() };
        self.ask(server, put).await.map(drop)
    }

    /// Writes into the store of this server.
    pub(super) fn put_here(&self, writer: &Writer, offset: u64, bytes: &[u8]) -> Result<()> {
        let (data, mut parts, mut left) = (self.store.data(), Vec::new(), bytes);
        while !left.is_empty() {
            let len = u32::try_from(left.len()).map_err(|_| Error::from(ErrorKind::TooLarge))?;
            let mut grant = data.reserve(writer.uid, writer.file, len)?;
            let (now, later) = left.split_at(left.len().min(grant.len() as usize));
            grant.as_mut_slice()[..now.len()].copy_from_slice(now);
            parts.push(Filled { grant, len: now.len() as u32, crc: crc32c::crc32c(now) });
            left = later;
        }
        if parts.is_empty() {
            return Ok(());
        }
        data.commit(writer.file, Place::At(offset), parts, writer.job).map(drop)
    }
}

fn is_unsure(error: &Error) -> bool {
    matches!(error.kind(), ErrorKind::Busy | ErrorKind::Unreachable)
}

/// Pieces of a range that fit what one server tells another.
fn small(server: ServerId, span: Span) -> impl Iterator<Item = (ServerId, Span)> {
    (span.start..span.end)
        .step_by(MAX_PUT)
        .map(move |start| (server, Span::new(start, span.end.min(start + MAX_PUT as u64))))
}
