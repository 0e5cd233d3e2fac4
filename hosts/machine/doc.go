// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

// Package machine reconciles one host of any kind. It provisions a reachable machine, runs the
// first boot, keeps the host at its fleet's configuration and repairs drift.
//
//	FleetFound ─► Provisioned ─► HostKeyPinned ─► Bootstrapped ─► Converged ─► Intact
//	                 (kind)                        first boot      update       probe, repair
//
// A host that is being deleted is drained first if its fleet has spec.drain, and its Node is
// deleted last:
//
//	NodeDrained ─► NodeCredentialRemoved ─► Released (kind) ─► NodeDeleted
//
// If the fleet names a version of the operating system, the host is updated to it in Converged
// (os.go). The update runs under a permit, which lasts from the drain of the Node until the Node is
// in service again.
//
// If the fleet has spec.nodeCredentials, the operator issues the credential with which the host
// joins its cluster (hosts/nodecert), in the same reconcile that pushes it. To renew a
// credential, the operator pushes its part again, as it does with a part that is lost.
//
// [Kind] hides what differs between kinds. Pushes and probes run outside the reconcile, in a
// [WorkerPool]. A reconcile records in the status which job starts, hands the job to the pool, and
// collects the result when the finished job enqueues the host. If the operator is killed, the next
// process finds the job in the status and runs it again under the same permit.
//
// A host that has drifted needs a permit of its fleet (hosts/fleet) before anything is pushed. A
// reconcile of a host that has not drifted reads no Secret, renders no plan and opens no
// connection.
package machine
