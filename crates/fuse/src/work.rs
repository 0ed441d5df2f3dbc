//! What takes more than one question to the service, or a decision.

use crate::convert::{self, Purpose};
use crate::open::Handles;
use crate::speaker::Speaker;
use forebay_client::IfExists;
use forebay_client::{Client, File};
use forebay_model::{
    Access, Attr, Change, Error, ErrorKind, FileId, FileKind, Identity, Result, Special, may,
};
use fuser::{FileAttr, FileHandle, INodeNo, Request};
use std::ffi::OsStr;
use tokio::runtime::Handle;

/// Serves the kernel.
pub(crate) struct Serve {
    pub(crate) speaker: Speaker,
    /// Whether pipes, sockets and devices are what they are here, or names that nobody can open.
    specials: bool,
    protects_links: bool,
    pub(crate) handles: Handles,
    pub(crate) wait: Handle,
}

impl Serve {
    pub(crate) fn new(speaker: Speaker, specials: bool, wait: Handle) -> Serve {
        let handles = Handles::default();
        Serve { speaker, specials, protects_links: protects_links(), handles, wait }
    }

    /// What the kernel is told about a file.
    pub(crate) fn shown(&self, attr: &Attr) -> FileAttr {
        match attr.kind {
            FileKind::Special(_) if !self.specials => {
                convert::attr(&Attr { kind: FileKind::File, mode: 0, ..attr.clone() })
            }
            _ => convert::attr(attr),
        }
    }

    pub(crate) fn make_special(
        &self,
        request: &Request,
        dir: FileId,
        name: &OsStr,
        mode: u32,
        special: Special,
    ) -> Result<Attr> {
        if !self.specials {
            let text = "special files need the option default_permissions where others are allowed in";
            return Err(Error::new(ErrorKind::NotPermitted, text));
        }
        let (client, name) = (self.speaker.of(request), convert::name(name)?);
        self.wait.block_on(client.by_id().make_special(dir, name, convert::permissions(mode), special))
    }

    pub(crate) fn get_attr(&self, file: INodeNo) -> Result<Attr> {
        self.wait.block_on(self.speaker.trusted().by_id().get_attr(id(file)))
    }

    pub(crate) fn set_attr(
        &self,
        client: &Client,
        file: FileId,
        handle: Option<FileHandle>,
        size: Option<u64>,
        change: Change,
    ) -> Result<Attr> {
        let by_id = client.by_id();
        match (size, handle) {
            (Some(size), Some(handle)) => {
                self.handles.with_file(handle, |file| self.wait.block_on(file.truncate(size)))?;
            }
            (Some(size), None) => self.wait.block_on(by_id.truncate(file, size))?,
            (None, _) => {}
        }
        match change == Change::default() {
            true => self.wait.block_on(self.speaker.trusted().by_id().get_attr(file)),
            false => self.wait.block_on(by_id.set_attr(file, change)),
        }
    }

    pub(crate) fn open_file(&self, request: &Request, file: FileId, flags: i32) -> Result<File> {
        let access = match convert::purpose(flags) {
            Purpose::Run => return self.open_program(request, file),
            Purpose::Use(access) => access,
        };
        let client = self.speaker.of(request);
        let cut = flags & libc::O_TRUNC != 0;
        if cut && !access.write {
            self.wait.block_on(client.by_id().truncate(file, 0))?;
        }
        self.wait.block_on(client.by_id().open(file, access, cut && access.write))
    }

    /// A program may be run by those who may not read it: then the kernel reads it for them.
    fn open_program(&self, request: &Request, file: FileId) -> Result<File> {
        let trusted = self.speaker.trusted();
        let attr = self.wait.block_on(trusted.by_id().get_attr(file))?;
        if !may(&self.speaker.identity(request), &attr, Access::EXECUTE) {
            return Err(ErrorKind::AccessDenied.into());
        }
        self.wait.block_on(trusted.by_id().open(file, Access::READ, false))
    }

    pub(crate) fn create_file(
        &self,
        request: &Request,
        dir: FileId,
        name: &OsStr,
        mode: u32,
        flags: i32,
    ) -> Result<File> {
        let access = match convert::purpose(flags) {
            Purpose::Use(access) => access,
            Purpose::Run => Access::READ,
        };
        let if_exists = match flags {
            _ if flags & libc::O_EXCL != 0 => IfExists::Refuse,
            _ if flags & libc::O_TRUNC != 0 && access.write => IfExists::Truncate,
            _ => IfExists::Open,
        };
        let client = self.speaker.of(request);
        let name = convert::name(name)?;
        let made = client.by_id().create(dir, name, convert::permissions(mode), access, if_exists);
        match self.wait.block_on(made) {
            Ok((file, _)) => Ok(file),
            // The kernel saw no entry, and now there is a link: it has to look again.
            Err(error) if error.kind() == ErrorKind::TooManyLinks => Err(ErrorKind::Stale.into()),
            Err(error) => Err(error),
        }
    }

    pub(crate) fn link_file(
        &self,
        request: &Request,
        file: FileId,
        dir: FileId,
        name: &OsStr,
    ) -> Result<Attr> {
        if self.protects_links && request.uid() != 0 {
            let attr = self.wait.block_on(self.speaker.trusted().by_id().get_attr(file))?;
            if !may_link(&self.speaker.identity(request), &attr) {
                return Err(ErrorKind::NotPermitted.into());
            }
        }
        let (client, name) = (self.speaker.of(request), convert::name(name)?);
        self.wait.block_on(client.by_id().link(file, dir, name))
    }

    pub(crate) fn write_file(
        &self,
        file: &File,
        offset: u64,
        data: &[u8],
        cached: bool,
        flags: i32,
    ) -> Result<()> {
        self.wait.block_on(async {
            // A page that comes back from a mapping knows its place, however the file was opened.
            match flags & libc::O_APPEND != 0 && !cached {
                true => drop(file.append(data).await?),
                false => file.pwrite(offset, data).await?,
            }
            if flags & libc::O_DSYNC != 0 { file.sync().await } else { Ok(()) }
        })
    }

    pub(crate) fn allocate(&self, file: &File, offset: u64, len: u64, mode: i32) -> Result<()> {
        const KEEP: i32 = libc::FALLOC_FL_KEEP_SIZE;
        const PUNCH: i32 = libc::FALLOC_FL_PUNCH_HOLE;
        const ZERO: i32 = libc::FALLOC_FL_ZERO_RANGE;
        let end = offset.checked_add(len).ok_or(ErrorKind::TooLarge)?;
        self.wait.block_on(async {
            match (mode & !KEEP, mode & KEEP != 0) {
                // Space is taken when bytes come: there is nothing to reserve.
                (0, true) => Ok(()),
                (0, false) => file.extend(end).await,
                (PUNCH | ZERO, true) => file.punch(offset, len).await,
                (ZERO, false) => {
                    file.extend(end).await?;
                    file.punch(offset, len).await
                }
                _ => Err(ErrorKind::Unsupported.into()),
            }
        })
    }
}

/// Whether this machine lets nobody give names to files that he could not change.
fn protects_links() -> bool {
    std::fs::read("/proc/sys/fs/protected_hardlinks").is_ok_and(|text| text.starts_with(b"1"))
}

/// The kernel's rule for machines that protect links; it leaves it to us where it checks no permissions.
fn may_link(who: &Identity, attr: &Attr) -> bool {
    let runs_as_others = attr.mode & 0o4000 != 0 || attr.mode & 0o2010 == 0o2010;
    who.uid == attr.uid || (attr.kind == FileKind::File && !runs_as_others && may(who, attr, Access::BOTH))
}

pub(crate) fn id(inode: INodeNo) -> FileId {
    FileId(inode.0)
}
