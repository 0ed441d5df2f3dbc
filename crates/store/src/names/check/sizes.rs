//! Checks recorded sizes against the bytes in the stores, and finds lost bytes.

use super::{Checker, Kind, Mend, Seen};
use crate::data::{Held, MAX_FILE, Rest};
use crate::names::Extent;
use forebay_model::{FileId, Layout, ServerId, list};

impl Checker<'_> {
    pub(super) fn sizes(&mut self) {
        let rests = std::mem::take(&mut self.rests);
        for (store, rest) in rests.iter().enumerate() {
            for fault in &rest.faults {
                self.find_kind(Kind::Size, fault.clone(), None);
            }
            for (&file, held) in &rest.files {
                self.one_size(store, file, held, &rests);
            }
        }
        let mut files: Vec<FileId> =
            self.seen.iter().filter(|(_, seen)| seen.is_file()).map(|(&id, _)| id).collect();
        files.sort_unstable();
        for file in files {
            self.lost(file, &rests);
        }
        self.rests = rests;
    }

    /// Checks one store's part of a file against the records of others.
    fn one_size(&mut self, store: usize, file: FileId, held: &Held, rests: &[Rest]) {
        let (holder, size) = (self.holder(store), held.size());
        if size > MAX_FILE {
            return self.find_kind(
                Kind::Size,
                format!("{holder} holds {size} bytes of file {file}, which cannot be"),
                None,
            );
        }
        let Some((home, layout, extent)) = self.seen.get(&file).and_then(Seen::bytes) else {
            if !self.is_absent(file) {
                let mend = rests[store].newest.map(|after| Mend::Bytes { store, file, after });
                let text = format!("{holder} holds bytes of file {file}, which has no inode");
                self.find_kind(Kind::Orphan, text, mend);
            }
            return;
        };
        // The server of the inode may have recorded a size even if it holds none of the bytes.
        let fits = self.servers[store].is_none_or(|server| layout.servers.contains(&server))
            || (store == home && held.end == 0);
        if !fits {
            let text = format!(
                "{holder} holds bytes of file {file}, which are to be on servers {}",
                list(&layout.servers)
            );
            return self.find_kind(Kind::Size, text, None);
        }
        if !held.size_pending && held.end > held.noted.unwrap_or(0) {
            let noted = held.noted.unwrap_or(0);
            let text =
                format!("{holder} has noted {noted} bytes of {}, and holds {}", self.shown(file), held.end);
            self.find_kind(Kind::Size, text, Some(Mend::Length { store, file }));
        }
        let changing = [home, store].iter().any(|&store| rests[store].changing.contains(&file));
        if home == store || extent.size_pending || changing {
            return;
        }
        let at_home = rests[home].files.get(&file).map_or(0, Held::size);
        let says = extent.least.max(at_home);
        let text = match (extent == Extent::default(), size > says) {
            (true, _) => {
                format!("no other server should hold bytes of {}, and {holder} does", self.shown(file))
            }
            (false, true) => {
                format!("{} has {says} bytes by its inode, and {holder} holds {size}", self.shown(file))
            }
            (false, false) => return,
        };
        self.find_kind(Kind::Size, text, Some(Mend::Unsettle { store: home, file }));
    }

    /// Bytes of a file in stores, or incarnations of stores, that are gone.
    fn lost(&mut self, file: FileId, rests: &[Rest]) {
        let Some((home, layout, extent)) = self.seen.get(&file).and_then(Seen::bytes) else { return };
        let incarnations = self.seen.get(&file).map(|seen| seen.incarnations.clone()).unwrap_or_default();
        let servers = self.servers.clone();
        let of = |server: ServerId| servers.iter().position(|one| *one == Some(server));
        let held = |store: usize| rests[store].files.get(&file);
        let sizes = layout.servers.iter().filter_map(|&server| held(of(server)?)).map(Held::size);
        let size = sizes.max().unwrap_or(0).max(extent.least);
        for (index, &server) in layout.servers.iter().enumerate() {
            let Some(store) = of(server) else { continue };
            let other = store != home && extent != Extent::default();
            let below = match held(store) {
                Some(held) => held.lost_below,
                None if other
                    && rests[store]
                        .incarnation
                        .is_some_and(|incarnation| Some(&incarnation) != incarnations.get(index)) =>
                {
                    size
                }
                None => 0,
            };
            let limit = below.min(size);
            let there = held(store).map_or(0, |held| held.there_below(limit));
            let lost = layout.share(index, limit).saturating_sub(there);
            let what = match (lost, below) {
                (0, u64::MAX) => "an unknown number of bytes".to_owned(),
                (0, _) => continue,
                (lost, _) => format!("{lost} bytes"),
            };
            let text = format!(
                "{}: what server {server} held of it was lost with its store: {what}",
                self.shown(file)
            );
            self.find_kind(Kind::Lost, text, None);
        }
    }

    fn holder(&self, store: usize) -> String {
        self.servers[store].map_or_else(|| "a store".to_owned(), |server| format!("server {server}"))
    }

    /// A file by one of its paths, if it has one.
    pub(super) fn shown(&self, file: FileId) -> String {
        match self.path(file) {
            Some(path) => format!("{path} (file {file})"),
            None => format!("file {file} (no path leads to it)"),
        }
    }

    fn path(&self, file: FileId) -> Option<String> {
        let (mut at, mut path) = (file, String::new());
        for _ in 0..super::MAX_DEPTH {
            if at == FileId::ROOT {
                return Some(path);
            }
            let (dir, name) = self.seen.get(&at)?.names.first()?;
            path = format!("/{name}{path}");
            at = *dir;
        }
        None
    }
}

impl Seen {
    /// Whether it is a regular file that was not removed.
    fn is_file(&self) -> bool {
        self.bytes.is_some() && !(self.orphan && self.names.is_empty())
    }

    /// The store of its inode, its layout and recorded size.
    fn bytes(&self) -> Option<(usize, Layout, Extent)> {
        self.bytes.as_deref().map(|(layout, extent)| (self.store, layout.clone(), *extent))
    }
}
