// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

// Package mac is the kind of host ScalewayAppleSiliconMachine: how a Mac is had from
// Scaleway and given back. What is brought to it is hosts/plan/mac, when that happens is
// the core's (hosts/machine).
//
//	no server ──order──► ordered ──┐
//	    │                          ├─► delivered ─► reached over SSH (the core)
//	    └──adopt──► named as ours ─┘                   │  3 first boots refused: restarted, once
//	                                                   │  8 (the core's limit): wiped and given back
//	deleted: a server of a pool is wiped and gets its old name again; an ordered one is deleted,
//	or while its least time runs wiped and left to be deleted when that is over
//
// The name of a server ties it to its machine: hf-NAME-UID. Two servers are never had for
// one machine, because a server of that name is looked for before one is ordered, and the
// time of an order is on record before it is sent. Two machines never have one server,
// because servers of a pool are given one at a time, against what is on record of all
// machines, and the name says whose it is to operators of other clusters.
package mac
