//! What is under way in the library, behind the engine's lock.

use std::ffi::c_int;

use super::active::{Active, Finished, Owner};
use super::alerts;
use super::connection::Connection;
use super::engine::Engine;
use super::library::Library;
use super::orders::Order;
use crate::{Done, NetError};

/// How something went, in one word.
pub(crate) type Outcome = Result<(), Box<NetError>>;

/// What happened, to be reported without the lock.
pub(crate) enum NetEvent {
    /// A batch is complete or failed.
    Done {
        /// The callback.
        done: Done,
        /// Which batch.
        batch: usize,
        /// How it went.
        result: Outcome,
    },
    /// Another rank's alert.
    Alert {
        /// Whose.
        from: u32,
        /// What it says.
        text: String,
    },
}

/// What is under way.
pub(crate) struct State {
    /// Requests.
    pub active: Active,
    /// Bytes of batches under way.
    pub bytes: usize,
    /// Where the next alert goes.
    pub alert: Box<[u8]>,
    connections: Vec<Option<Connection>>,
    /// Why the library is not to be called again.
    broken: Option<NetError>,
    /// Whether anything has failed.
    failed: bool,
    /// Scratch: orders that are being carried out, requests that are complete.
    orders: Vec<Order>,
    finished: Vec<Finished>,
}

impl State {
    /// Nothing.
    pub(crate) fn new(library: &Library) -> State {
        State {
            active: Active::new(library),
            bytes: 0,
            alert: vec![0; alerts::LONGEST].into(),
            connections: Vec::new(),
            broken: None,
            failed: false,
            orders: Vec::new(),
            finished: Vec::new(),
        }
    }

    /// Whether the library can be called.
    pub(crate) fn usable(&self) -> Result<(), NetError> {
        self.broken.clone().map_or(Ok(()), Err)
    }

    /// Whether nothing has failed so far, so that the other ranks can be expected to come to an end with this one.
    pub(crate) fn is_well(&self) -> bool {
        self.broken.is_none() && !self.failed
    }

    /// From now on it cannot.
    pub(crate) fn close(&mut self, why: NetError) {
        self.broken.get_or_insert(why);
    }

    /// Keeps a connection; its number.
    pub(crate) fn insert(&mut self, connection: Connection) -> usize {
        self.connections.push(Some(connection));
        self.connections.len() - 1
    }

    /// Frees a connection.
    pub(crate) fn remove(&mut self, library: &Library, number: usize) {
        let Some(mut connection) = self.connections[number].take() else { return };
        if self.broken.is_none() {
            // SAFETY: the thread that has the state is the only one in the library.
            unsafe { connection.free(library) };
        }
        // What is still under way finds its connection again; by contract nothing is.
        if connection.under_way() {
            self.connections[number] = Some(connection);
        }
    }

    /// Takes the standing receive back and ends the library, when nothing else is under way.
    pub(crate) fn end(&mut self, library: &Library) {
        if let Some(mut request) = self.active.standing() {
            // Nothing can be done about errors any more.
            // SAFETY: the thread that has the state is the only one in the library. The buffer lives as long as the
            // state.
            let _ = unsafe { library.cancel(&mut request) };
            // SAFETY: as above.
            let _ = unsafe { library.request_free(&mut request) };
        }
        // SAFETY: as above.
        let _ = unsafe { library.finalize() };
    }

    /// Takes all orders over.
    pub(crate) fn take_orders(&mut self, orders: &mut Vec<Order>) {
        self.orders.append(orders);
    }

    /// Starts what was ordered.
    pub(crate) fn start(&mut self, engine: &Engine, events: &mut Vec<NetEvent>) {
        for (number, batch) in self.orders.drain(..) {
            let Some(connection) = &mut self.connections[number] else { continue };
            if let Some(error) = &self.broken {
                connection.refuse(batch, error, events);
                continue;
            }
            // SAFETY: the thread that has the state is the only one in the library; the thread that ordered the batch
            // answers for the memory.
            self.bytes +=
                unsafe { connection.start(&engine.library, &mut self.active, (number, batch), events) };
        }
    }

    /// Tests what is under way; whether anything is complete.
    pub(crate) fn test(&mut self, engine: &Engine, events: &mut Vec<NetEvent>) -> bool {
        if self.broken.is_some() {
            return false;
        }
        // SAFETY: the thread that has the state is the only one in the library; the threads that started requests
        // answer for the memory.
        if let Err(error) = unsafe { self.active.test(&engine.library, &mut self.finished) } {
            self.give_up(&error, events);
            return true;
        }
        if self.finished.is_empty() {
            return false;
        }
        let mut finished = std::mem::take(&mut self.finished);
        for request in finished.drain(..) {
            self.finish(engine, request, events);
        }
        self.finished = finished;
        true
    }

    fn finish(&mut self, engine: &Engine, request: Finished, events: &mut Vec<NetEvent>) {
        let Finished { owner, status, error } = request;
        let result = error.map_or(Ok(()), |code| Err(Box::new(self.failure(engine, &owner, code))));
        self.failed |= result.is_err();
        match owner {
            Owner::Message { connection, batch, .. } => {
                if let Some(connection) = &mut self.connections[connection as usize] {
                    self.bytes -= connection.finish(batch as usize, result, events);
                }
            }
            Owner::Ticket(ticket) => drop(ticket.set(result.map_err(|error| *error))),
            Owner::AlertOut(_) => {}
            Owner::Alert => {
                if result.is_ok() {
                    // SAFETY: the thread that has the state is the only one in the library.
                    events.extend(unsafe { alerts::read(self, &engine.library, status) });
                }
                // Without another receive this rank is deaf, which it can live with.
                // SAFETY: as above; the buffer was read and belongs to the state.
                let _ = unsafe { alerts::listen(self, &engine.library, engine.comms.alerts) };
            }
        }
    }

    fn failure(&self, engine: &Engine, owner: &Owner, code: c_int) -> NetError {
        let what = match owner {
            Owner::Message { connection, batch, message } => {
                self.connections[*connection as usize].as_ref().map_or_else(String::new, |connection| {
                    connection.describe(*batch as usize, *message as usize)
                })
            }
            Owner::Ticket(_) => "an agreement".into(),
            Owner::Alert | Owner::AlertOut(_) => "an alert".into(),
        };
        let why = format!("{what}: {}", engine.library.explain(code));
        NetError::Call { rank: engine.rank, call: "MPI_Testsome", why }
    }

    /// The library fails as a whole: so does all that is under way.
    fn give_up(&mut self, error: &NetError, events: &mut Vec<NetEvent>) {
        self.close(error.clone());
        for owner in self.active.give_up() {
            match owner {
                Owner::Message { connection, batch, .. } => {
                    if let Some(connection) = &mut self.connections[connection as usize] {
                        self.bytes -= connection.finish(batch as usize, Err(error.clone().into()), events);
                    }
                }
                Owner::Ticket(ticket) => drop(ticket.set(Err(error.clone()))),
                Owner::Alert | Owner::AlertOut(_) => {}
            }
        }
    }
}
