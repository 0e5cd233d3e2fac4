// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

// Package secrets searches for credentials in places where none may be. A test registers every credential
// with the places where the credential is allowed. Then it scans all data that a machine, a hypervisor, the
// cluster and the operator store or send, and gets the list of findings:
//
//	var scanner secrets.Scanner
//	scanner.Register(secrets.Secret{Name: "the CI platform's token", Value: token})
//	scanner.ScanTree("disk", root)
//	scanner.Scan("log", "operator.log", log)
//	findings := scanner.Findings()
//
// The Scanner recognizes a credential in several encodings: unencoded, in base64 (also at any offset of a
// longer base64 text, in both alphabets, and encoded twice), in hexadecimal, escaped for URLs and JSON, as
// lines of PEM, and in data that is compressed with gzip.
//
// The package's tests also check which servers and objects tenants can reach through an operator with all
// areas. The tenant has all permissions in its own namespace. The operator's namespace and another tenant's
// namespace exist, too.
package secrets
