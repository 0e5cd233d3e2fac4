// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

// Package s3 runs a real S3-compatible server on the loopback interface for tests: versitygw, which stores
// objects in a directory. The server verifies signatures, regions and request times as S3 does.
//
//	server := s3.Start(t)
//	server.CreateBucket(t, "logs")
//
// hack/setup.sh s3 builds the program (hack/tools/versitygw).
package s3
