//! What may be lost, found in what is here.

use super::{SUSPECTS, Sign, Suspect};
use crate::service::Service;
use crate::several::is_afar;
use crate::several::joining::{Stores, first_id};
use forebay_model::{ErrorKind, FileId, Name, Result};
use forebay_store::{Body, Inode};
use std::collections::{BTreeMap, HashMap, HashSet};
use std::ops::ControlFlow;

/// What is looked for, and what was found.
struct Scan<'a> {
    service: &'a Service,
    stores: Stores,
    found: Vec<Suspect>,
    /// Directories that lost stores made, and how many names of theirs are here.
    stranded: BTreeMap<FileId, u64>,
}

impl Service {
    /// Reads all there is; says whether that was all.
    pub(super) fn suspects(&self) -> Result<(Vec<Suspect>, bool)> {
        let (stranded, stores) = (BTreeMap::new(), self.joining.replaced());
        let mut scan = Scan { service: self, stores, found: Vec::new(), stranded };
        scan.inodes()?;
        if !scan.stores.is_empty() {
            scan.entries()?;
            scan.bytes();
        }
        let all = !scan.is_full();
        let stranded = scan.stranded.into_iter().map(|(dir, names)| Suspect::of(dir, Sign::Entries(names)));
        Ok((scan.found.into_iter().chain(stranded).collect(), all))
    }

    /// Reads again what was suspected: it may have changed, moved or gone.
    pub(super) fn reread(&self, list: &[Suspect]) -> Result<Vec<Suspect>> {
        let mut left = Vec::new();
        for suspect in list {
            left.extend(self.reread_one(suspect)?);
        }
        self.call_here(&mut left)?;
        Ok(left)
    }

    fn reread_one(&self, suspect: &Suspect) -> Result<Option<Suspect>> {
        let file = suspect.file;
        Ok(match &suspect.sign {
            Sign::Held(..) => {
                let Some(inode) = self.inode_of(file)? else { return Ok(None) };
                let mut now = self.suspect_bytes(file, &inode)?.into_iter();
                let now = now.find(|now| now.server == suspect.server);
                now.map(|now| Suspect {
                    name: suspect.name.clone().filter(|_| now.dir == suspect.dir),
                    ..now
                })
            }
            Sign::Leads(_) => {
                let (Some(dir), Some(name)) = (suspect.dir, &suspect.name) else { return Ok(None) };
                self.store.names().leads(dir, name, file)?.then(|| suspect.clone())
            }
            &Sign::Nameless { kind, names, size } => {
                let Some(inode) = self.inode_of(file)? else { return Ok(None) };
                let said = inode.parents.iter().filter(|&&dir| Some(dir) == suspect.dir).count();
                let names = names.min(u32::try_from(said).unwrap_or(u32::MAX));
                let sign = Sign::Nameless { kind, names, size };
                (names > 0).then(|| Suspect { sign, ..suspect.clone() })
            }
            Sign::Bytes => (self.store.data().facts(file)?.buffered > 0).then(|| suspect.clone()),
            Sign::Entries(_) => Some(suspect.clone()),
        })
    }

    fn inode_of(&self, file: FileId) -> Result<Option<Inode>> {
        match self.store.names().inode(file) {
            Ok(inode) => Ok(Some(inode)),
            Err(error) if error.kind() == ErrorKind::NotFound => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Looks for names that are at home here of files of which bytes are lost.
    fn call_here(&self, list: &mut [Suspect]) -> Result<()> {
        let (members, names) = (self.members.members(), self.store.names());
        let mut wanted = HashSet::new();
        for suspect in list.iter_mut().filter(|suspect| matches!(suspect.sign, Sign::Held(..))) {
            let Some(dir) = suspect.dir else { continue };
            if let Some(name) = &suspect.name {
                let is_here = members.home(dir, name) == self.config.server;
                if !is_here || names.leads(dir, name, suspect.file)? {
                    continue;
                }
            }
            suspect.name = None;
            wanted.insert((dir, suspect.file));
        }
        let known = self.called(&wanted)?;
        for suspect in list.iter_mut().filter(|suspect| suspect.name.is_none()) {
            let place = suspect.dir.map(|dir| (dir, suspect.file));
            suspect.name = place.and_then(|place| known.get(&place).cloned());
        }
        Ok(())
    }

    /// What files are called in directories, by names that are at home here.
    pub(super) fn called(
        &self,
        wanted: &HashSet<(FileId, FileId)>,
    ) -> Result<HashMap<(FileId, FileId), Name>> {
        let mut known = HashMap::new();
        if !wanted.is_empty() {
            self.store.names().each_entry(&mut |dir, name, target| {
                if wanted.contains(&(dir, target.file)) {
                    known.insert((dir, target.file), name.clone());
                }
                ControlFlow::Continue(())
            })?;
        }
        Ok(known)
    }

    /// The servers that may have lost bytes of a file of ours. One without a name was removed.
    fn suspect_bytes(&self, file: FileId, inode: &Inode) -> Result<Vec<Suspect>> {
        let (Body::File { layout, incarnations, extent }, Some(dir)) = (&inode.body, inode.parent()) else {
            return Ok(Vec::new());
        };
        let local = self.store.data().facts(file)?.size;
        let below = if extent.unsettled { u64::MAX } else { extent.least.max(local) };
        let held = layout.servers.iter().zip(incarnations).enumerate();
        // What is behind is not lost.
        let recovers = self.to_recover(file)?;
        let suspected = held.filter(|&(index, (&server, &incarnation))| {
            let known = self.joining.known(server).map(|(known, _)| known);
            let changed = is_afar(extent) && known != Some(incarnation) && layout.share(index, below) > 0;
            let changed = changed && !recovers.iter().any(|(other, _)| *other == server);
            // What cannot be read is looked at again when it is asked for.
            let missing = || self.missing(file, layout, None).is_ok_and(|lost| lost.is_some());
            if server == self.config.server { missing() } else { changed }
        });
        let suspect = |(_, (&server, _))| {
            let sign = Sign::Held(layout.clone(), below);
            Suspect { server: Some(server), file, dir: Some(dir), name: None, sign }
        };
        Ok(suspected.map(suspect).collect())
    }
}

impl Scan<'_> {
    fn is_full(&self) -> bool {
        self.found.len() + self.stranded.len() >= SUSPECTS
    }

    fn room(&self) -> ControlFlow<()> {
        if self.is_full() { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
    }

    /// Whether a store that is gone made this.
    fn is_bereft(&self, file: FileId) -> bool {
        let lives = self.stores.get(&file.maker()).map(|&(_, lives)| lives);
        file != FileId::ROOT && lives.is_some_and(|lives| file.count() < first_id(lives))
    }

    fn inodes(&mut self) -> Result<()> {
        let (service, mut fault) = (self.service, None);
        service.store.names().each_inode(&mut |file, inode| match service.suspect_bytes(file, inode) {
            Ok(found) => {
                self.found.extend(found);
                self.room()
            }
            Err(error) => {
                fault = Some(error);
                ControlFlow::Break(())
            }
        })?;
        fault.map_or(Ok(()), Err)
    }

    fn entries(&mut self) -> Result<()> {
        self.service.store.names().each_entry(&mut |dir, name, target| {
            if self.is_bereft(dir) {
                *self.stranded.entry(dir).or_default() += 1;
            }
            if self.is_bereft(target.file) {
                let suspect = Suspect::of(target.file, Sign::Leads(target.kind));
                self.found.push(Suspect { dir: Some(dir), name: Some(name.clone()), ..suspect });
            }
            self.room()
        })
    }

    fn bytes(&mut self) {
        let files = self.service.store.data().files();
        let bereft = files.into_iter().filter(|&file| self.is_bereft(file));
        let bereft: Vec<Suspect> = bereft.map(|file| Suspect::of(file, Sign::Bytes)).collect();
        let room = SUSPECTS.saturating_sub(self.found.len());
        self.found.extend(bereft.into_iter().take(room));
    }
}

impl Suspect {
    /// Something that its maker must know.
    fn of(file: FileId, sign: Sign) -> Suspect {
        Suspect { server: Some(file.maker()), file, dir: None, name: None, sign }
    }
}
