// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

// Package store keeps the fleet API's state in PostgreSQL (13 or newer). It has the
// primitives; what they mean together (generations, deletion, conditions) is
// platform/server's, which composes them in transactions.
//
// Locks. Transactions run at READ COMMITTED and lock the rows that they decide by. Lock
// an owner before what it owns, and a resource before those it refers to; where that
// can't be, PostgreSQL ends one of two transactions that wait for each other, and InTx
// runs it again. Insert and SetReferences lock owners and targets by themselves, so that
// nothing is added to a resource whose deletion has begun.
//
// The change feed. A change is written, and numbered from a sequence, in the transaction
// that makes it, which holds the resource's lock: so numbers order the changes of one
// resource as they were committed. But a transaction may draw a low number and commit
// late, and a reader that has gone beyond it would never hear of it. So before a
// transaction draws its first number it takes a shared advisory lock that names the last
// number drawn until then, and holds it to its end; all numbers of its own are higher. A
// reader takes the last number drawn, then looks at who holds such locks, and reads up to
// the lowest number it finds: whoever drew one up to there has ended, and is visible. A
// transaction that records a change and stays open holds the feed up for as long, and
// Options.Timeout bounds that. Transactions that record none don't.
//
// Migrations (migrations/) only go forward, run when a store is opened, and leave replicas
// of the version before at work: columns are added first and removed a version later.
//
// Connections have to reach the server itself or a pooler that keeps sessions: LISTEN
// wakes who waits for changes.
package store
