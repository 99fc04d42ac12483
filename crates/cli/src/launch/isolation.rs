//! A network of their own for the processes of a job on this host, in which there is loopback and nothing else.
//!
//! Open MPI and MPICH listen on all addresses for their own management, whatever flags they are given. In a network
//! namespace they still do, but no other host reaches them, and neither does any process outside of the job. Where the
//! system permits no namespaces, the job takes the network of the host, and says so (`job.rs`).
//!
//! A process cannot go back once it has entered, so whether that works is tried by another one first.

use std::io;
use std::process::{Command, Stdio};

use super::leash;

/// Whether processes of this user get a network of their own here.
pub fn is_permitted() -> bool {
    let line = leash::on(Vec::new(), true);
    let [program, args @ ..] = line.as_slice() else { return false };
    let mut trial = Command::new(program);
    trial.args(args).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    cfg!(target_os = "linux") && trial.status().is_ok_and(|status| status.success())
}

/// Whether this process sees loopback alone. If the system does not tell, it does not.
pub fn is_isolated() -> bool {
    let Ok(devices) = std::fs::read_to_string("/proc/net/dev") else { return false };
    // Two lines of headings, and then one that begins with its name for each.
    devices.lines().skip(2).all(|line| line.trim_start().starts_with("lo:"))
}

/// Moves this process, which must have one thread, into a new network, and what it becomes or starts with it.
#[cfg(target_os = "linux")]
pub fn enter() -> io::Result<()> {
    use nix::sched::{CloneFlags, unshare};
    if unshare(CloneFlags::CLONE_NEWNET).is_err() {
        // Only the administrator of a user namespace may do that: this process becomes one, with its user and group.
        let [user, group] = [nix::unistd::geteuid().as_raw(), nix::unistd::getegid().as_raw()];
        unshare(CloneFlags::CLONE_NEWUSER | CloneFlags::CLONE_NEWNET)?;
        std::fs::write("/proc/self/setgroups", "deny")?;
        std::fs::write("/proc/self/uid_map", format!("{user} {user} 1"))?;
        std::fs::write("/proc/self/gid_map", format!("{group} {group} 1"))?;
    }
    raise_loopback()
}

#[cfg(not(target_os = "linux"))]
pub fn enter() -> io::Result<()> {
    Err(io::ErrorKind::Unsupported.into())
}

/// Loopback is the first device of a new network, and is down.
#[cfg(target_os = "linux")]
fn raise_loopback() -> io::Result<()> {
    use rustix::net::{
        AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType, recv, send, socket_with,
    };
    /// Change a device, as a request that is acknowledged: numbers of `linux/rtnetlink.h` and `linux/netlink.h`.
    const KIND: u16 = 16;
    const FLAGS: u16 = 1 | 4;
    const UP: u32 = 1;
    const LENGTH: u32 = 32;
    let header = [&LENGTH.to_ne_bytes()[..], &KIND.to_ne_bytes(), &FLAGS.to_ne_bytes(), &[0; 8]].concat();
    // No family, no type, device 1; its flags, and which of them change.
    let device = [&[0; 4][..], &1u32.to_ne_bytes(), &UP.to_ne_bytes(), &UP.to_ne_bytes()].concat();
    let kernel = socket_with(AddressFamily::NETLINK, SocketType::RAW, SocketFlags::CLOEXEC, None)?;
    send(&kernel, &[header, device].concat(), SendFlags::empty())?;
    let mut answer = [0; 64];
    let (_, length) = recv(&kernel, &mut answer[..], RecvFlags::empty())?;
    // The code of an error, negative, follows the header.
    match answer[..length].get(16..20).map(|code| i32::from_ne_bytes([code[0], code[1], code[2], code[3]])) {
        Some(0) => Ok(()),
        Some(code) => Err(io::Error::from_raw_os_error(-code)),
        None => Err(io::ErrorKind::UnexpectedEof.into()),
    }
}
