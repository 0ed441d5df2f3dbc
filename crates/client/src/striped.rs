//! Data of files that is not only on the server that opened the file: split by the layout, transferred concurrently.

use crate::flow::Target;
use crate::join::join;
use crate::opens::{done, position, unexpected};
use crate::server_list::not_a_member;
use crate::service::Service;
use crate::session::Session;
use crate::transfer::check_range;
use forebay_model::{Error, ErrorKind, Layout, Result, SeekTo, ServerId, Span, Stripes, lock};
use forebay_wire::{Reply, Request};
use std::collections::BTreeSet;
use std::sync::{Arc, Mutex};

/// The layout of an open file and the sessions with its servers.
pub(crate) struct StripedFile {
    service: Arc<Service>,
    /// The session with the server that opened it.
    authority: Arc<Session>,
    layout: Layout,
    /// The servers that have received the file's token.
    used: Mutex<BTreeSet<ServerId>>,
}

/// A piece of a read and its result.
struct Part<'a> {
    server: ServerId,
    span: Span,
    into: &'a mut [u8],
}

impl StripedFile {
    /// Creates it from the file's layout; `None` if all data is on the server that opened the file.
    pub(crate) fn of(
        service: &Arc<Service>,
        authority: &Arc<Session>,
        layout: &Layout,
    ) -> Result<Option<StripedFile>> {
        let Some(members) = service.cluster() else {
            return Ok(None);
        };
        let servers = &layout.servers;
        if servers.is_empty() || (servers.len() > 1 && layout.stripe == 0) {
            let text = format!(
                "the service sent an invalid layout: {} servers, stripe {}",
                servers.len(),
                layout.stripe
            );
            return Err(Error::new(ErrorKind::Protocol, text));
        }
        if let Some(unknown) = servers.iter().find(|server| !members.contains(**server)) {
            return Err(not_a_member(*unknown));
        }
        if servers.len() == 1 && authority.server() == layout.only() {
            return Ok(None);
        }
        let (service, authority, layout) = (service.clone(), authority.clone(), layout.clone());
        Ok(Some(StripedFile { service, authority, layout, used: Mutex::default() }))
    }

    /// The other servers that have received the file's token.
    pub(crate) fn used(&self) -> Vec<Arc<Session>> {
        let used = lock(&self.used);
        used.iter().filter_map(|server| self.service.session(*server).ok()).collect()
    }

    fn session(&self, server: ServerId) -> Result<Arc<Session>> {
        let session = self.service.session(server)?;
        if self.authority.server() != Some(server) {
            lock(&self.used).insert(server);
        }
        Ok(session)
    }

    /// Sends a request to the server that orders appends, truncations and holes.
    pub(crate) async fn notify_order(&self, target: Target<'_>, request: &Request) -> Result<()> {
        done(&self.authority, target.who, request).await
    }

    /// Sends a request to every server that has data of the file.
    pub(crate) async fn notify_every(&self, target: Target<'_>, request: &Request) -> Result<()> {
        let mut servers: BTreeSet<ServerId> = self.layout.servers.iter().copied().collect();
        servers.extend(self.authority.server());
        self.notify_each(target, servers, request).await
    }

    async fn notify_each(
        &self,
        target: Target<'_>,
        servers: BTreeSet<ServerId>,
        request: &Request,
    ) -> Result<()> {
        let calls = servers.into_iter().map(|server| self.notify(target, server, request));
        join(calls.collect()).await.into_iter().collect()
    }

    async fn notify(&self, target: Target<'_>, server: ServerId, request: &Request) -> Result<()> {
        let session = self.session(server)?;
        match done(&session, target.who, request).await {
            Err(error) if self.may_need_reassert(server, &error) => {
                self.reassert(target).await?;
                done(&session, target.who, request).await
            }
            result => result,
        }
    }

    /// Whether a server rejected the token because the file's authority may have forgotten the open file: the authority
    /// restarted, and the server checked the token there before this client had reconnected.
    fn may_need_reassert(&self, server: ServerId, error: &Error) -> bool {
        error.kind() == ErrorKind::Stale && self.authority.server() != Some(server)
    }

    async fn reassert(&self, target: Target<'_>) -> Result<()> {
        let request = Request::Reopen { token: target.token };
        self.authority.call(target.who, &request).await.map(drop)
    }

    async fn write(&self, target: Target<'_>, server: ServerId, offset: u64, data: &[u8]) -> Result<()> {
        let session = self.session(server)?;
        match session.write_at(target, offset, data).await {
            Err(error) if self.may_need_reassert(server, &error) => {
                self.reassert(target).await?;
                session.write_at(target, offset, data).await
            }
            written => written,
        }
    }

    async fn read(
        &self,
        target: Target<'_>,
        server: ServerId,
        offset: u64,
        into: &mut [u8],
    ) -> Result<usize> {
        let session = self.session(server)?;
        match session.read_at(target, offset, into).await {
            Err(error) if self.may_need_reassert(server, &error) => {
                self.reassert(target).await?;
                session.read_at(target, offset, into).await
            }
            read => read,
        }
    }

    /// Whether a transfer needs only one server.
    pub(crate) fn is_narrow(&self, offset: u64, len: usize) -> bool {
        let span = Span::new(offset, offset.saturating_add(len as u64));
        self.layout.pieces(span).nth(1).is_none()
    }

    /// Writes all of `data` at an offset.
    pub(crate) async fn write_at(&self, target: Target<'_>, offset: u64, data: &[u8]) -> Result<()> {
        let span = check_range(offset, data.len())?;
        if self.is_narrow(offset, data.len()) {
            return self.write(target, self.layout.server_at(offset), offset, data).await;
        }
        let parts = self.layout.pieces(span).map(|(server, span)| {
            let data = &data[(span.start - offset) as usize..(span.end - offset) as usize];
            self.write(target, server, span.start, data)
        });
        join(parts.collect()).await.into_iter().collect()
    }

    /// Appends all of `data` and returns its offset, which the authority assigns.
    pub(crate) async fn append(&self, target: Target<'_>, data: &[u8]) -> Result<u64> {
        self.authority.append(target, data).await
    }

    /// Reads into `into` from an offset on; returns fewer bytes only at the end of the file.
    pub(crate) async fn read_at(&self, target: Target<'_>, offset: u64, into: &mut [u8]) -> Result<usize> {
        let span = check_range(offset, into.len())?;
        let mut parts = Vec::new();
        let mut rest = &mut *into;
        for (server, span) in self.layout.pieces(span) {
            let (into, after) = rest.split_at_mut(span.len() as usize);
            parts.push(Part { server, span, into });
            rest = after;
        }
        let reads = parts.iter_mut().map(|part| self.read_part(target, part, 0)).collect();
        let seen = join(reads).await;
        if seen.iter().zip(&parts).all(|(seen, part)| seen.as_ref().is_ok_and(|len| *len == part.into.len()))
        {
            return Ok(parts.iter().map(|part| part.into.len()).sum());
        }
        self.complete_short_reads(target, span, parts, seen).await
    }

    async fn read_part(&self, target: Target<'_>, part: &mut Part<'_>, from: usize) -> Result<usize> {
        let (at, into) = (part.span.start + from as u64, &mut part.into[from..]);
        Ok(from + self.read(target, part.server, at, into).await?)
    }

    /// Completes short reads. A server without more data does not know where the file ends. Missing bytes before the
    /// end are read once more, since they may have been written meanwhile; bytes still missing then are zeros.
    async fn complete_short_reads(
        &self,
        target: Target<'_>,
        span: Span,
        mut parts: Vec<Part<'_>>,
        seen: Vec<Result<usize>>,
    ) -> Result<usize> {
        let size = match self.size(target).await {
            Ok(size) => size,
            Err(error) => return Err(seen.into_iter().find_map(Result::err).unwrap_or(error)),
        };
        let end = size.clamp(span.start, span.end);
        let mut again = Vec::new();
        for (part, seen) in parts.iter_mut().zip(seen) {
            let inside = end.saturating_sub(part.span.start).min(part.span.len()) as usize;
            // Errors on bytes after the end of the file do not matter.
            if inside == 0 {
                continue;
            }
            let seen = seen?;
            if seen < inside {
                again.push(self.complete(target, part, seen, inside));
            }
        }
        join(again).await.into_iter().collect::<Result<()>>()?;
        Ok((end - span.start) as usize)
    }

    async fn complete(
        &self,
        target: Target<'_>,
        part: &mut Part<'_>,
        seen: usize,
        inside: usize,
    ) -> Result<()> {
        let len = self.read_part(target, part, seen).await?;
        if len < inside {
            part.into[len..inside].fill(0);
        }
        Ok(())
    }

    /// The first offset at or after `offset` that is data, or in a hole. Each server reports on its own stripes.
    pub(crate) async fn seek(&self, target: Target<'_>, offset: u64, to: SeekTo) -> Result<Option<u64>> {
        let size = self.size(target).await?;
        if offset >= size {
            return Ok(None);
        }
        let count = self.layout.servers.len() as u16;
        let asked = self.layout.servers.iter().zip(0..count).map(|(&server, index)| {
            let stripes = if count > 1 { Stripes::new(self.layout.stripe, index, count) } else { None };
            self.seek_on(
                target,
                server,
                Request::Seek { token: target.token, offset, to, end: Some(size), stripes },
            )
        });
        let found: Vec<Option<u64>> = join(asked.collect()).await.into_iter().collect::<Result<_>>()?;
        Ok(found.into_iter().flatten().min())
    }

    async fn seek_on(&self, target: Target<'_>, server: ServerId, request: Request) -> Result<Option<u64>> {
        let session = self.session(server)?;
        match position(&session, target.who, &request).await {
            Err(error) if self.may_need_reassert(server, &error) => {
                self.reassert(target).await?;
                position(&session, target.who, &request).await
            }
            found => found,
        }
    }

    async fn size(&self, target: Target<'_>) -> Result<u64> {
        let request = Request::GetAttr { file: target.token.file };
        match self.authority.call(target.who, &request).await? {
            Reply::Attr(attr) => Ok(attr.size),
            other => Err(unexpected(&request, &other)),
        }
    }
}
