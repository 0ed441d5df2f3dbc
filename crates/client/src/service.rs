//! All servers of a service: one session for each, made when it is first needed, and who is asked what.

use crate::ClientConfig;
use crate::join::join;
use crate::path::first_part;
use crate::prefixes::Prefixes;
use crate::roll::not_a_member;
use crate::session::{Session, Who};
use forebay_model::{FileId, Members, Name, Result, ServerId};
use forebay_wire::{Reply, Request};
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;
use tokio::time::timeout;

/// What all clones of a client share.
pub(crate) struct Service {
    /// The session with the server at the address that the client was given.
    first: Arc<Session>,
    others: Mutex<BTreeMap<ServerId, Arc<Session>>>,
    pub(crate) prefixes: Prefixes,
}

impl Service {
    pub(crate) async fn start(config: ClientConfig) -> Result<Arc<Service>> {
        let first = Session::first(config).await?;
        Ok(Arc::new(Service { first, others: Mutex::default(), prefixes: Prefixes::default() }))
    }

    /// The session with the server that the client was pointed at.
    pub(crate) fn first(&self) -> &Arc<Session> {
        &self.first
    }

    /// The servers, unless there is only one.
    pub(crate) fn several(&self) -> Option<Arc<Members>> {
        self.first.roll.members().filter(|members| members.all().len() > 1)
    }

    /// The session with a server.
    pub(crate) fn session(&self, server: ServerId) -> Result<Arc<Session>> {
        match self.several() {
            None => Ok(self.first.clone()),
            Some(_) if self.first.server() == Some(server) => Ok(self.first.clone()),
            Some(members) if members.contains(server) => Ok(self.other(server)),
            Some(_) => Err(not_a_member(server)),
        }
    }

    fn other(&self, server: ServerId) -> Arc<Session> {
        let mut others = self.others.lock().unwrap_or_else(PoisonError::into_inner);
        others.entry(server).or_insert_with(|| self.first.sibling(server)).clone()
    }

    /// The sessions with all servers, in the order of their numbers.
    pub(crate) fn all(&self) -> Vec<Arc<Session>> {
        match self.several() {
            None => vec![self.first.clone()],
            Some(members) => members.servers().filter_map(|server| self.session(server).ok()).collect(),
        }
    }

    /// The sessions with all servers that have names.
    pub(crate) fn namers(&self) -> Vec<Arc<Session>> {
        match self.several() {
            None => vec![self.first.clone()],
            Some(members) => members.namers().filter_map(|server| self.session(server).ok()).collect(),
        }
    }

    /// The session with the server that has to be asked this.
    pub(crate) fn whom(&self, request: &Request) -> Result<Arc<Session>> {
        match self.several().and_then(|members| answers(&members, request)) {
            None => Ok(self.first.clone()),
            Some(server) => self.session(server),
        }
    }

    /// Asks whoever can answer.
    pub(crate) async fn call(&self, who: &Who, request: &Request) -> Result<Reply> {
        // With one server there is nobody to look for, and nothing to hold on to.
        match self.several() {
            None => self.first.call(who, request).await,
            Some(_) => self.whom(request)?.call(who, request).await,
        }
    }

    /// Asks every server at once.
    pub(crate) async fn call_all(&self, who: &Who, request: &Request) -> Vec<(Arc<Session>, Result<Reply>)> {
        let all = self.all();
        let calls = all.iter().map(|session| session.call(who, request)).collect();
        let replies = join(calls).await;
        all.into_iter().zip(replies).collect()
    }

    /// Asks every server at once, and waits for one that is away no longer than for a connection.
    pub(crate) async fn survey(&self, who: &Who, request: &Request) -> Vec<(Arc<Session>, Result<Reply>)> {
        let all = self.all();
        if let [only] = &all[..] {
            return vec![(only.clone(), only.call(who, request).await)];
        }
        let ask = async |session: &Session| {
            let patience: Duration = session.config.connect_timeout.min(session.config.request_timeout);
            let answer = timeout(patience, Box::pin(session.call(who, request))).await;
            answer.unwrap_or_else(|_| Err(session.no_answer_in(patience)))
        };
        let replies = join(all.iter().map(|session| ask(session)).collect()).await;
        all.into_iter().zip(replies).collect()
    }
}

/// The server that can answer a request; `None` if any can.
fn answers(members: &Members, request: &Request) -> Option<ServerId> {
    match request {
        Request::Walk { dir, path, .. } => Some(walks(members, *dir, path)),
        Request::Jump { path, known, .. } => {
            let rest = path.get(usize::from(known.len)..).unwrap_or_default();
            Some(walks(members, known.dir, rest))
        }
        Request::Create { dir, name, .. }
        | Request::MakeDir { dir, name, .. }
        | Request::MakeSpecial { dir, name, .. }
        | Request::RemoveDir { dir, name }
        | Request::Unlink { dir, name }
        | Request::Rename { dir, name, .. }
        | Request::Link { dir, name, .. }
        | Request::Symlink { dir, name, .. } => Some(members.home(*dir, name)),
        Request::GetAttr { file }
        | Request::SetAttr { file, .. }
        | Request::Open { file, .. }
        | Request::TruncateFile { file, .. }
        | Request::ReadLink { file }
        | Request::GetXattr { file, .. }
        | Request::SetXattr { file, .. }
        | Request::ListXattr { file }
        | Request::RemoveXattr { file, .. }
        | Request::GetLayout { file }
        | Request::SetLayout { dir: file, .. } => Some(members.authority(*file)),
        Request::Reopen { token }
        | Request::Close { token }
        | Request::Truncate { token, .. }
        | Request::Extend { token, .. }
        | Request::Punch { token, .. }
        | Request::Sync { token }
        | Request::Ring { token, .. }
        | Request::Map { token, .. }
        | Request::Write { token, .. }
        | Request::Read { token, .. } => Some(members.authority(token.file)),
        Request::Drain(_) => Some(members.authority(FileId::ROOT)),
        _ => None,
    }
}

/// The server that takes the first step of a path.
fn walks(members: &Members, dir: FileId, path: &[u8]) -> ServerId {
    match first_part(path).map(Name::new) {
        Some(Ok(name)) => members.home(dir, &name),
        // `..`, nothing, or what is no name: whoever has the directory knows what to say.
        _ => members.authority(dir),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use forebay_model::{Access, Change, Member, Uid};
    use forebay_wire::{Known, RenameMode, Token};

    #[test]
    fn names_are_asked_for_at_home_and_files_of_their_authority() {
        let member = |n| Member { server: ServerId(n), address: format!("tcp:h{n}:1"), socket: None };
        let members = Members::new(1, (1..=5).map(member).collect()).unwrap();
        let name = |text: &str| Name::new(text).unwrap();
        let (dir, file) = (FileId::made_by(ServerId(2), 9), FileId::made_by(ServerId(4), 7));
        let token = Token { file, access: Access::BOTH, uid: Uid(0), serial: 1, seal: [0; 16] };
        let walk = |path: &str| Request::Walk { dir, path: path.into(), follow: true };
        let jump = |path: &str, len: u16| Request::Jump {
            path: path.into(),
            follow: true,
            known: Known { len, dir },
        };
        let at_home = |text: &str| Some(members.home(dir, &name(text)));
        let rename = Request::Rename {
            dir,
            name: name("n"),
            to_dir: file,
            to_name: name("m"),
            mode: RenameMode::Replace,
        };
        for (request, expected) in [
            (walk("n/m"), at_home("n")),
            (walk("//./n"), at_home("n")),
            (walk("../n"), Some(ServerId(2))),
            (walk(""), Some(ServerId(2))),
            (walk("."), Some(ServerId(2))),
            (walk(&"x".repeat(300)), Some(ServerId(2))),
            (jump("a/b/n/m", 3), at_home("n")),
            (jump("a/b", 3), Some(ServerId(2))),
            (jump("a/b", 9), Some(ServerId(2))),
            (Request::MakeDir { dir, name: name("n"), mode: 0 }, at_home("n")),
            (Request::Link { file, dir, name: name("n") }, at_home("n")),
            (rename, at_home("n")),
            (Request::SetAttr { file, change: Change::default() }, Some(ServerId(4))),
            (Request::GetAttr { file: FileId::ROOT }, Some(ServerId(1))),
            (Request::Sync { token }, Some(ServerId(4))),
            (Request::StatFs, None),
        ] {
            assert_eq!(answers(&members, &request), expected, "{request:?}");
        }
    }
}
