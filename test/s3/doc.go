// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

// Package s3 gives tests a real S3-compatible server, versitygw over a folder, on the loopback
// interface: it verifies signatures, regions and clocks as S3 does.
//
//	server := s3.Start(t)
//	server.Bucket(t, "logs")
//
// hack/setup.sh s3 makes the program (hack/tools/versitygw).
package s3
