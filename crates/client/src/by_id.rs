//! Operations on files and directories by id. Mounts use them directly, and path resolution is built on them.

use crate::File;
use crate::file::Label;
use crate::join::join;
use crate::listing::{Page, merge, share};
use crate::opens::{Opened, Opening, unexpected};
use crate::service::Service;
use crate::session::{Session, Who};
use crate::striped::StripedFile;
use forebay_model::{
    Access, Attr, Change, Error, ErrorKind, FileId, Incarnation, Layout, MAX_PATH, Name, Result, Special,
    Striping,
};
use forebay_wire::{Entry, IfExists, RenameMode, Reply, Request, Token, XattrMode};
use std::sync::Arc;

/// Maximum number of symbolic links on one path.
pub const MAX_LINKS: usize = 40;

/// How often a create or open is retried because the file was removed in between.
const TRIES: usize = 16;
/// Number of attribute requests sent at a time.
const AT_ONCE: usize = 64;

/// Operations by id; see [`Client::by_id`](crate::Client::by_id).
#[derive(Clone)]
pub struct ById {
    pub(crate) service: Arc<Service>,
    pub(crate) who: Who,
}

/// Sends a request and extracts the expected kind of reply.
macro_rules! call_for {
    ($self:ident, $request:expr, $reply:pat => $value:expr) => {{
        let request = $request;
        match $self.service.call(&$self.who, &request).await? {
            $reply => Ok($value),
            other => Err(unexpected(&request, &other)),
        }
    }};
}

/// Result of resolving a path up to the first symbolic link.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Step {
    /// The path resolves to this file.
    Found(Attr),
    /// The path contains a symbolic link.
    Link {
        /// The directory that holds the link.
        dir: FileId,
        /// The link's target.
        target: Vec<u8>,
        /// The rest of the path after the link.
        rest: Vec<u8>,
    },
}

impl ById {
    /// Resolves a path up to the first symbolic link, for callers that interpret absolute links themselves.
    pub async fn step(&self, dir: FileId, path: &[u8], follow: bool) -> Result<Step> {
        if self.service.cluster().is_some() {
            return Box::pin(self.walk_cluster(dir, path, follow)).await;
        }
        if dir == FileId::ROOT
            && let Some(attr) = self.service.first().seen_attr(&self.who, path, follow)
        {
            return Ok(Step::Found(attr));
        }
        let request = Request::Walk { dir, path: path.to_vec(), follow };
        match self.service.first().call(&self.who, &request).await? {
            Reply::Found(attr) => Ok(Step::Found(attr)),
            Reply::Link { dir, target, rest } => Ok(Step::Link { dir, target, rest }),
            other => Err(unexpected(&request, &other)),
        }
    }

    /// The directory at a path from the root, if the name cache has it. If a request in that directory fails as stale,
    /// the directory was removed, and the caller must walk the path.
    #[must_use]
    pub fn seen_dir(&self, dir: FileId, path: &[u8]) -> Option<FileId> {
        match self.service.cluster() {
            None if dir == FileId::ROOT => self.service.first().seen_dir(&self.who, path),
            _ => None,
        }
    }

    /// Resolves a path from a directory and follows symbolic links, in the last component only if `follow`. Absolute
    /// links start at the service's root.
    pub async fn walk(&self, dir: FileId, path: &[u8], follow: bool) -> Result<Attr> {
        let (mut dir, mut path) = (dir, path.to_vec());
        for _ in 0..=MAX_LINKS {
            if path.len() > MAX_PATH {
                return Err(too_long());
            }
            // A trailing slash refers to the directory that the link points to.
            let through = follow || path.ends_with(b"/");
            match self.step(dir, &path, through).await? {
                Step::Found(attr) => return Ok(attr),
                Step::Link { dir: holder, target, rest } => (dir, path) = follow_link(holder, target, &rest),
            }
        }
        Err(ErrorKind::TooManyLinks.into())
    }

    /// Attributes of a file.
    pub async fn get_attr(&self, file: FileId) -> Result<Attr> {
        call_for!(self, Request::GetAttr { file }, Reply::Attr(attr) => attr)
    }

    /// The incarnation of the store that has a file's inode. It tells the files of two services with the same number
    /// apart, and is the same by whatever address a client has reached the service.
    pub async fn incarnation(&self, file: FileId) -> Result<Incarnation> {
        let session = self.service.session_for(&Request::GetAttr { file })?;
        session.control().await?;
        session.incarnation().ok_or_else(|| ErrorKind::Unreachable.into())
    }

    /// Changes attributes and returns all attributes.
    pub async fn set_attr(&self, file: FileId, change: Change) -> Result<Attr> {
        call_for!(self, Request::SetAttr { file, change }, Reply::Attr(attr) => attr)
    }

    /// Opens a file.
    pub async fn open(&self, file: FileId, access: Access, truncate: bool) -> Result<File> {
        let opened = self.open_by(Request::Open { file, access, truncate }).await?;
        Ok(File::new(opened, Label::Number(file)))
    }

    /// Takes over a file that another process, or this process before `exec`, has opened.
    pub async fn reopen(&self, token: Token) -> Result<File> {
        let opened = self.open_by(Request::Reopen { token }).await?;
        Ok(File::new(opened, Label::Number(token.file)))
    }

    /// Closes an open file by its token even if other threads of this process still use it. For a process that exits.
    pub async fn close(&self, token: Token) -> Result<()> {
        call_for!(self, Request::Close { token }, Reply::Done => ())
    }

    /// Creates a file or opens the existing one, and returns whether it was created. Does not follow a symbolic link of
    /// that name: `TooManyLinks`.
    pub async fn create(
        &self,
        dir: FileId,
        name: Name,
        mode: u16,
        access: Access,
        if_exists: IfExists,
    ) -> Result<(File, bool)> {
        let label = Label::Entry(dir, name.clone());
        let request = Request::Create { dir, name, mode, access, if_exists };
        let opened = self.open_by(request).await?;
        let created = opened.created;
        Ok((File::new(opened, label), created))
    }

    /// Opens a file on the server that has its inode, which may differ from the server that has the name.
    async fn open_by(&self, request: Request) -> Result<Opened> {
        for _ in 0..TRIES {
            let file = match self.service.session_for(&request)?.open(&self.who, &request).await? {
                Opening::Here(opened) => return self.attach_layout(*opened),
                Opening::At(file) => file,
            };
            let Request::Create { access, if_exists, .. } = &request else {
                let text = "the service redirected an open away from the file's authority";
                return Err(Error::new(ErrorKind::Protocol, text));
            };
            let open = Request::Open { file, access: *access, truncate: *if_exists == IfExists::Truncate };
            match self.service.session_for(&open)?.open(&self.who, &open).await {
                Ok(Opening::Here(opened)) => return self.attach_layout(*opened),
                // The file was removed meanwhile, and perhaps its name too.
                Err(error) if matches!(error.kind(), ErrorKind::Stale | ErrorKind::NotFound) => {}
                Ok(Opening::At(_)) => return Err(ErrorKind::Protocol.into()),
                Err(error) => return Err(error),
            }
        }
        Err(ErrorKind::Busy.into())
    }

    /// Records the layout of an open file unless all of its data is on the server that opened it.
    fn attach_layout(&self, opened: Opened) -> Result<Opened> {
        match StripedFile::of(&self.service, opened.held.session(), &opened.layout)? {
            Some(striped) => Ok(Opened { held: opened.held.with_striped(striped), ..opened }),
            None => Ok(opened),
        }
    }

    /// Sets the length of a file.
    pub async fn truncate(&self, file: FileId, size: u64) -> Result<()> {
        call_for!(self, Request::TruncateFile { file, size }, Reply::Done => ())
    }

    /// Creates a directory.
    pub async fn mkdir(&self, dir: FileId, name: Name, mode: u16) -> Result<Attr> {
        call_for!(self, Request::MakeDir { dir, name, mode }, Reply::Attr(attr) => attr)
    }

    /// Creates a FIFO, socket or device node.
    pub async fn make_special(&self, dir: FileId, name: Name, mode: u16, special: Special) -> Result<Attr> {
        call_for!(self, Request::MakeSpecial { dir, name, mode, special }, Reply::Attr(attr) => attr)
    }

    /// Removes an empty directory.
    pub async fn rmdir(&self, dir: FileId, name: Name) -> Result<()> {
        call_for!(self, Request::RemoveDir { dir, name }, Reply::Done => ())
    }

    /// Removes a name of a file.
    pub async fn unlink(&self, dir: FileId, name: Name) -> Result<()> {
        call_for!(self, Request::Unlink { dir, name }, Reply::Done => ())
    }

    /// Renames an entry.
    pub async fn rename(
        &self,
        dir: FileId,
        name: Name,
        to_dir: FileId,
        to_name: Name,
        mode: RenameMode,
    ) -> Result<()> {
        call_for!(self, Request::Rename { dir, name, to_dir, to_name, mode }, Reply::Done => ())
    }

    /// Creates a hard link.
    pub async fn link(&self, file: FileId, dir: FileId, name: Name) -> Result<Attr> {
        call_for!(self, Request::Link { file, dir, name }, Reply::Attr(attr) => attr)
    }

    /// Creates a symbolic link.
    pub async fn symlink(&self, dir: FileId, name: Name, target: &[u8]) -> Result<Attr> {
        call_for!(self, Request::Symlink { dir, name, target: target.to_vec() }, Reply::Attr(attr) => attr)
    }

    /// The target of a symbolic link.
    pub async fn read_link(&self, file: FileId) -> Result<Vec<u8>> {
        call_for!(self, Request::ReadLink { file }, Reply::Target(target) => target)
    }

    /// Where the kernel of the server's machine opens a named pipe. Fails with *unsupported* if the server has no such
    /// place.
    pub async fn local_pipe(&self, file: FileId) -> Result<Vec<u8>> {
        call_for!(self, Request::LocalPipe { file }, Reply::Target(path) => path)
    }

    /// A page of directory entries, and the cookie of the next page unless this is the last.
    pub async fn read_dir(
        &self,
        dir: FileId,
        cookie: u64,
        limit: u32,
        plus: bool,
    ) -> Result<(Vec<Entry>, Option<u64>)> {
        let request = Request::ReadDir { dir, cookie, limit, plus };
        if self.service.cluster().is_none() {
            let Page { entries, next } = self.page(self.service.first(), &request, cookie).await?;
            return Ok((entries, next));
        }
        let sessions = self.service.namers();
        let request = Request::ReadDir { dir, cookie, limit: share(limit, sessions.len()), plus };
        let pages = sessions.iter().map(|session| self.page(session, &request, cookie));
        let pages: Result<Vec<Page>> = join(pages.collect()).await.into_iter().collect();
        let Page { mut entries, next } = merge(pages?, limit as usize);
        if plus {
            self.complete(&mut entries).await?;
        }
        Ok((entries, next))
    }

    async fn page(&self, session: &Session, request: &Request, cookie: u64) -> Result<Page> {
        match session.call(&self.who, request).await? {
            Reply::Entries { next: Some(next), .. } if next <= cookie => Err(Error::new(
                ErrorKind::Protocol,
                "the service sent a directory page that does not advance",
            )),
            Reply::Entries { entries, next } => Ok(Page { entries, next }),
            other => Err(unexpected(request, &other)),
        }
    }

    /// Requests the attributes that the servers of the names do not have. Entries removed meanwhile are left out.
    async fn complete(&self, entries: &mut Vec<Entry>) -> Result<()> {
        let missing: Vec<usize> = (0..entries.len()).filter(|&index| entries[index].attr.is_none()).collect();
        let mut gone = Vec::new();
        for batch in missing.chunks(AT_ONCE) {
            let asked = batch.iter().map(|&index| self.get_attr(entries[index].file)).collect();
            for (&index, attr) in batch.iter().zip(join(asked).await) {
                match attr {
                    Ok(attr) => entries[index].attr = Some(attr),
                    Err(error) if matches!(error.kind(), ErrorKind::Stale | ErrorKind::NotFound) => {
                        gone.push(entries[index].cookie);
                    }
                    Err(error) => return Err(error),
                }
            }
        }
        entries.retain(|entry| entry.attr.is_some() || !gone.contains(&entry.cookie));
        Ok(())
    }

    /// The striping of a directory's new files (`None` if the servers choose), or the layout of a file.
    pub async fn layout(&self, file: FileId) -> Result<(Option<Striping>, Option<Layout>)> {
        call_for!(self, Request::GetLayout { file }, Reply::Layout { striping, layout } => (striping, layout))
    }

    /// Sets the striping of files that are created in a directory from now on; `None` lets the servers choose.
    pub async fn set_layout(&self, dir: FileId, striping: Option<Striping>) -> Result<()> {
        call_for!(self, Request::SetLayout { dir, striping }, Reply::Layout { .. } => ())
    }

    /// Value of an extended attribute.
    pub async fn get_xattr(&self, file: FileId, name: Name) -> Result<Vec<u8>> {
        call_for!(self, Request::GetXattr { file, name }, Reply::Value(value) => value)
    }

    /// Sets an extended attribute.
    pub async fn set_xattr(&self, file: FileId, name: Name, value: &[u8], mode: XattrMode) -> Result<()> {
        call_for!(self, Request::SetXattr { file, name, value: value.to_vec(), mode }, Reply::Done => ())
    }

    /// Names of all extended attributes.
    pub async fn list_xattr(&self, file: FileId) -> Result<Vec<Name>> {
        call_for!(self, Request::ListXattr { file }, Reply::Names(names) => names)
    }

    /// Removes an extended attribute.
    pub async fn remove_xattr(&self, file: FileId, name: Name) -> Result<()> {
        call_for!(self, Request::RemoveXattr { file, name }, Reply::Done => ())
    }
}

/// Where a link in directory `holder` leads: a directory and the path relative to it.
pub(crate) fn follow_link(holder: FileId, target: Vec<u8>, rest: &[u8]) -> (FileId, Vec<u8>) {
    let dir = if target.starts_with(b"/") { FileId::ROOT } else { holder };
    let mut path = target;
    if !rest.is_empty() {
        path.push(b'/');
        path.extend_from_slice(rest);
    }
    (dir, path)
}

pub(crate) fn too_long() -> Error {
    Error::new(ErrorKind::NameTooLong, format!("a path has at most {MAX_PATH} bytes"))
}
