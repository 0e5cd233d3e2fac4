// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

// Package bounds limits what untrusted users and the servers that they configure can make this
// program read, allocate and call:
//
//   - text before it is decoded. A decoder allocates memory for each value, however small the value
//     is, and a text of 1 MiB can contain half a million values
//   - responses. A few hundred kilobytes of gzip can expand to hundreds of megabytes, and libraries
//     read a response as a whole
//   - the servers that may be called ([EgressPolicy])
package bounds
