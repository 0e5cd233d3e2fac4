// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

// Package store keeps the fleet API's state in PostgreSQL (13 or newer). It only has the primitives.
// Package platform/server combines them in transactions and implements generations, deletion and
// conditions.
//
// # Locks
//
// Transactions run at READ COMMITTED and lock the rows that their decisions depend on. A transaction
// has to lock an owner before the resources that it owns, and a resource before those that it refers
// to. If this order is not possible, two transactions can wait for each other. PostgreSQL then aborts
// one of them, and InTx runs it again. Insert and SetReferences lock owners and targets themselves, so
// that nothing is added to a resource whose deletion has begun.
//
// # The change feed
//
// The transaction that makes a change also writes it to the feed, with a number from a sequence. The
// transaction holds the resource's lock, so the numbers order the changes of one resource in the order
// of their commits. However, a transaction can draw a low number and commit late. A reader whose cursor
// is already past that number would miss the change. Therefore a transaction takes a shared advisory
// lock before it draws its first number, and holds it until its end. The lock names the last number
// drawn so far, so all numbers of the transaction are higher. A reader first reads the last number
// drawn, then the locks that are held, and reads the changes up to the lowest of these numbers. All
// transactions that drew a number up to there have ended, so their changes are visible. A transaction
// that records a change and stays open blocks the feed for that time, which Options.Timeout limits.
// Transactions without changes do not block the feed.
//
// A cursor names a change by its number and its random token. After a restore of the database, from a dump, a
// copy of its files or its log, new changes get the numbers of the lost ones again, but not their tokens. A
// cursor is valid as long as the database has the change that it names, or has pruned it as the last one.
//
// # Migrations
//
// Migrations (migrations/) only go forward. They run when a store is opened, and must not break
// replicas of the previous version: a version adds columns, and only a later version removes any.
//
// # Connections
//
// Connections have to go to the server itself or to a pooler that keeps sessions, because LISTEN wakes
// the requests that wait for changes.
package store
