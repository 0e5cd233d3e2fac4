// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

// Package hypervisorcluster keeps the connection to each hypervisor and reports what
// is there.
//
//	Credentials ──► Connected ──► Inspected ──► (again every interval)
//
// A cluster that is not Ready gets no new machines; machines that run go on. It is
// deleted only once no MachineClaim has a machine on it.
package hypervisorcluster
