// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

// Package httpbound bounds what the servers that users name can have this program hold: a
// few hundred kilobytes of gzip become hundreds of megabytes, and libraries read an answer
// as a whole. It also says where credentials may be sent.
package httpbound
