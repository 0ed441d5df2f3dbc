//! Requests that need several calls to the service, or a decision.

use crate::convert::{self, Purpose};
use crate::mount::FirstUse;
use crate::open::{Handles, Open};
use crate::pages::{AllPages, Answers, Pages};
use crate::speaker::{Caller, Speaker};
use forebay_client::{Client, File, IfExists, called_at};
use forebay_model::{
    Access, Attr, Change, Error, ErrorKind, FileId, FileKind, Identity, Result, SeekTo, Special, may,
};
use fuser::{FileAttr, FileHandle, INodeNo};
use std::ffi::OsStr;
use std::sync::Once;
use std::time::Instant;
use tokio::runtime::Handle;

/// Serves the kernel's requests.
pub(crate) struct Serve {
    pub(crate) speaker: Speaker,
    /// Whether special files appear as such, or as files that cannot be opened.
    specials: bool,
    protects_links: bool,
    pub(crate) handles: Handles,
    pub(crate) pages: AllPages,
    /// Replies that wait until pages are dropped.
    pub(crate) answers: Answers,
    pub(crate) wait: Handle,
    first_use: Once,
    on_first_use: Option<FirstUse>,
}

impl Serve {
    pub(crate) fn new(
        speaker: Speaker,
        specials: bool,
        answers: Answers,
        wait: Handle,
        on_first_use: Option<FirstUse>,
    ) -> Serve {
        let (handles, pages, first_use) = (Handles::default(), AllPages::default(), Once::new());
        let protects_links = protects_links();
        Serve { speaker, specials, protects_links, handles, pages, answers, wait, first_use, on_first_use }
    }

    /// A program looks at what is below the mount point.
    pub(crate) fn used(&self) {
        if let Some(act) = &self.on_first_use {
            self.first_use.call_once(act);
        }
    }

    /// The kernel's handle for an open file.
    pub(crate) fn handle(&self, file: File) -> FileHandle {
        let pages = self.pages.of(INodeNo(file.id().0));
        self.handles.insert(Open::File(file, pages))
    }

    /// The attributes that the kernel gets for a file.
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
        caller: Caller,
        dir: FileId,
        name: &OsStr,
        mode: u32,
        special: Special,
    ) -> Result<Attr> {
        if !self.specials {
            let text = "special files need the mount option default_permissions if allow_other is set";
            return Err(Error::new(ErrorKind::NotPermitted, text));
        }
        let (client, name) = (self.speaker.of(caller), convert::name(name)?);
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

    pub(crate) fn open_file(&self, caller: Caller, file: FileId, flags: i32) -> Result<File> {
        let access = match convert::purpose(flags) {
            Purpose::Run => return self.open_program(caller, file),
            Purpose::Use(access) => access,
        };
        let client = self.speaker.of(caller);
        let truncate = flags & libc::O_TRUNC != 0;
        if truncate && !access.write {
            self.wait.block_on(client.by_id().truncate(file, 0))?;
        }
        self.wait.block_on(client.by_id().open(file, access, truncate && access.write))
    }

    /// A user without read permission may execute a program: then the kernel reads it.
    fn open_program(&self, caller: Caller, file: FileId) -> Result<File> {
        let trusted = self.speaker.trusted();
        let attr = self.wait.block_on(trusted.by_id().get_attr(file))?;
        if !may(&self.speaker.identity(caller), &attr, Access::EXECUTE) {
            return Err(ErrorKind::AccessDenied.into());
        }
        self.wait.block_on(trusted.by_id().open(file, Access::READ, false))
    }

    pub(crate) fn create_file(
        &self,
        caller: Caller,
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
        let client = self.speaker.of(caller);
        let name = convert::name(name)?;
        let made = client.by_id().create(dir, name, convert::permissions(mode), access, if_exists);
        match self.wait.block_on(made) {
            Ok((file, _)) => Ok(file),
            // The kernel saw no entry, and now there is a symbolic link: the kernel has to look it up again.
            Err(error) if error.kind() == ErrorKind::TooManyLinks => Err(ErrorKind::Stale.into()),
            Err(error) => Err(error),
        }
    }

    pub(crate) fn link_file(&self, caller: Caller, file: FileId, dir: FileId, name: &OsStr) -> Result<Attr> {
        if self.protects_links && caller.uid != 0 {
            let attr = self.wait.block_on(self.speaker.trusted().by_id().get_attr(file))?;
            if !may_link(&self.speaker.identity(caller), &attr) {
                return Err(ErrorKind::NotPermitted.into());
            }
        }
        let (client, name) = (self.speaker.of(caller), convert::name(name)?);
        self.wait.block_on(client.by_id().link(file, dir, name))
    }

    /// Performs a direct write; returns its offset.
    pub(crate) fn write_file(
        &self,
        file: &File,
        offset: u64,
        data: &[u8],
        flags: i32,
        called: Instant,
    ) -> (Result<()>, u64) {
        let mut start = offset;
        let written = self.wait.block_on(called_at(called, async {
            match flags & libc::O_APPEND != 0 {
                true => start = file.append(data).await?,
                false => file.pwrite(offset, data).await?,
            }
            if flags & libc::O_DSYNC != 0 { file.sync().await } else { Ok(()) }
        }));
        (written, start)
    }

    /// Before the kernel gets pages of a file, or writes them back: programs may store into pages of a file that is open
    /// for writing, which excludes processes that map its shared memory.
    pub(crate) fn keep_pages(&self, file: &File, called: Instant) -> Result<()> {
        if !file.token().access.write {
            return Ok(());
        }
        let kept = self.wait.block_on(called_at(called, file.keep_pages()));
        kept.inspect_err(|error| tracing::warn!("{error}"))
    }

    /// Writes back a page of a mapping, at its own offset even if the file was opened with `O_APPEND`.
    pub(crate) fn take_page(
        &self,
        file: &File,
        offset: u64,
        data: &[u8],
        flags: i32,
        called: Instant,
    ) -> Result<()> {
        self.keep_pages(file, called)?;
        self.wait.block_on(called_at(called, async {
            file.pwrite(offset, data).await?;
            if flags & libc::O_DSYNC != 0 { file.sync().await } else { Ok(()) }
        }))
    }

    /// The next data, or the next hole. While the kernel has pages of the file, stores into them are unknown, so the
    /// whole file counts as data.
    pub(crate) fn seek(&self, file: &File, pages: &Pages, offset: i64, whence: i32) -> Result<Option<u64>> {
        let Ok(offset) = u64::try_from(offset) else { return Ok(None) };
        let to = match whence {
            libc::SEEK_DATA => SeekTo::Data,
            libc::SEEK_HOLE => SeekTo::Hole,
            _ => return Err(ErrorKind::Invalid.into()),
        };
        if !pages.are_mapped() {
            return self.wait.block_on(file.seek(offset, to));
        }
        let size = self.wait.block_on(file.stat())?.size;
        let found = if to == SeekTo::Data { offset } else { size };
        Ok((offset < size).then_some(found))
    }

    pub(crate) fn allocate(&self, file: &File, offset: u64, len: u64, mode: i32) -> Result<()> {
        const KEEP: i32 = libc::FALLOC_FL_KEEP_SIZE;
        const PUNCH: i32 = libc::FALLOC_FL_PUNCH_HOLE;
        const ZERO: i32 = libc::FALLOC_FL_ZERO_RANGE;
        let end = offset.checked_add(len).ok_or(ErrorKind::TooLarge)?;
        self.wait.block_on(async {
            match (mode & !KEEP, mode & KEEP != 0) {
                // Space is allocated when data arrives: there is nothing to reserve.
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

/// Whether this host forbids users to link files that they could not change.
fn protects_links() -> bool {
    std::fs::read("/proc/sys/fs/protected_hardlinks").is_ok_and(|text| text.starts_with(b"1"))
}

/// The kernel's rule for hosts that protect links; the mount has to apply it where the kernel checks no permissions.
fn may_link(who: &Identity, attr: &Attr) -> bool {
    let runs_as_others = attr.mode & 0o4000 != 0 || attr.mode & 0o2010 == 0o2010;
    who.uid == attr.uid || (attr.kind == FileKind::File && !runs_as_others && may(who, attr, Access::BOTH))
}

pub(crate) fn id(inode: INodeNo) -> FileId {
    FileId(inode.0)
}
