// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

// Package objectstore writes small texts to S3-compatible storage, and reads and deletes them. Each
// operation is one signed request without retries. The caller decides whether and when to retry.
package objectstore
