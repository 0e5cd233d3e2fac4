// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

// Package objectstore writes small texts to S3-compatible storage, and reads them there: one
// request for each, signed by the caller's keys, and tried once. Who calls decides whether and
// when it is tried again.
package objectstore
