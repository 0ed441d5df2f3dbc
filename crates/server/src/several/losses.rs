//! What went with stores that were lost, as far as this server can tell: a sentence for each file and name.

use super::is_afar;
use crate::service::Service;
use forebay_model::{FileId, ServerId};
use forebay_store::{Body, Inode};
use std::ops::ControlFlow;

impl Service {
    /// At most so many sentences.
    pub(crate) fn losses(&self, most: usize) -> Vec<String> {
        let mut sentences = Vec::new();
        if self.joining.has_lost() {
            sentences.push(format!(
                "an earlier store of server {} was lost with all names and files that it held; what is not found in \
                 directories made before gives an I/O error until \"forebay check --repair\"",
                self.config.server
            ));
        }
        if self.joining.replaced().is_empty() {
            return sentences;
        }
        // Rare, and it reads all there is.
        tokio::task::block_in_place(|| self.list_losses(most, &mut sentences));
        sentences
    }

    fn list_losses(&self, most: usize, sentences: &mut Vec<String>) {
        let names = self.store.names();
        let full = |sentences: &Vec<String>| match sentences.len() < most {
            true => ControlFlow::Continue(()),
            false => ControlFlow::Break(()),
        };
        let read = names.each_inode(&mut |file, inode| {
            let lost = self.lost_bytes(file, inode);
            sentences.extend(lost.into_iter().map(|server| {
                format!("file {file}: the bytes that server {server} held were lost with its store; reading them gives an I/O error")
            }));
            full(sentences)
        });
        let replaced = self.joining.replaced();
        let read = read.and(names.each_entry(&mut |dir, name, target| {
            let first = replaced.get(&target.file.maker()).map(|&(_, lives)| super::joining::first_id(lives));
            if first.is_some_and(|first| target.file.0 & 0xffff_ffff_ffff < first) {
                sentences.push(format!(
                    "{name:?} in directory {dir} leads to file {}, which was lost with the store of server {}",
                    target.file,
                    target.file.maker()
                ));
            }
            full(sentences)
        }));
        if let Err(error) = read {
            sentences.push(format!("what was lost cannot be listed: {error}"));
        }
    }

    /// The servers that have lost bytes of a file of ours.
    fn lost_bytes(&self, file: FileId, inode: &Inode) -> Vec<ServerId> {
        let Body::File { layout, incarnations, extent } = &inode.body else { return Vec::new() };
        if !is_afar(extent) {
            return Vec::new();
        }
        let local = self.store.data().facts(file).map_or(0, |facts| facts.size);
        let size = if extent.unsettled { u64::MAX } else { extent.least.max(local) };
        let held = layout.servers.iter().zip(incarnations).enumerate();
        let lost = held.filter(|&(index, (&server, &incarnation))| {
            let known = self.joining.known(server).map(|(known, _)| known);
            server != self.config.server
                && known != Some(incarnation)
                && (index as u64).saturating_mul(layout.stripe) < size
        });
        lost.map(|(_, (&server, _))| server).collect()
    }
}
