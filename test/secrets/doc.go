// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

// Package secrets looks for credentials where none may be. A Scanner is told of every
// credential that a test has planted, and where it may be seen; it is then shown all that a
// machine, a hypervisor, the cluster and the operator keep or tell, and names what it finds:
//
//	var scanner secrets.Scanner
//	scanner.Plant(secrets.Secret{Name: "the forge's token", Value: token})
//	scanner.Tree("disk", root)
//	scanner.Look("log", log)
//	findings := scanner.Findings()
//
// A credential is known again in the forms that it travels in: as it is, in base64 (also
// within other base64, at any offset, and in either alphabet), hexadecimal, escaped for URLs
// and JSON, as lines of PEM, and in what was compressed by gzip.
//
// Its tests also hold an operator with all its areas to what its tenants may reach: a team that
// has every right in its namespace, beside the operator's own namespace and a neighbour's.
package secrets
