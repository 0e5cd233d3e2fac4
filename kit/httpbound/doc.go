// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

// Package httpbound limits how much memory the servers that users configure can make this program
// allocate. A few hundred kilobytes of gzip can expand to hundreds of megabytes, and libraries read
// a response as a whole. The package also decides to which servers credentials may be sent.
package httpbound
