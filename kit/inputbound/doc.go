// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

// Package inputbound limits untrusted input before it is decoded. A decoder allocates memory for
// each value, however small the value is, and a text of 1 MiB can contain half a million values.
package inputbound
