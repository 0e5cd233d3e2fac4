// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

// Package machine reconciles one host of any kind: from a machine that can be reached over
// first boot to a host that follows its fleet's configuration and is put right where it is
// no longer as it was left.
//
//	FleetFound ─► Provisioned ─► Bootstrapped ─► Converged ─► Intact
//	                 (kind)       first boot      update       probe, repair
//
// One that is deleted is drained first, where its fleet says so, and its Node goes after it:
//
//	NodeDrained ─► NodeCredentialRemoved ─► Released (kind) ─► NodeDeleted
//
// The operating system of a host whose fleet names a version is updated in Converged, as one more
// thing under a permit (os.go), which lasts from the drain of its Node until that is in service again.
//
// What a host joins its cluster with is made for it where its fleet says so (hosts/nodecert), in
// the pass that pushes it, and renewed as a part that was lost.
//
// What differs between kinds is behind [Kind]. Pushes and probes run beside the
// reconcile, in a [WorkerPool]: a pass writes down what begins, hands it over, and takes up the
// result when it is woken. An operator that was killed finds in the status what was under
// way, and does it again, under the same permit.
//
// A host that has drifted needs a permit of its fleet (hosts/fleet) before anything is
// pushed. A pass over a host that has not drifted reads no Secret, renders nothing and
// opens no connection.
package machine
