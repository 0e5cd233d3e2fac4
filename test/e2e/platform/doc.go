// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

// Package platform runs the platform as users do (make e2e-platform). The programs api, sentinel, adapter and
// sweep run as processes, with the files of deploy/samples/platform. They use a real PostgreSQL, with or
// without RabbitMQ, and a real API server with garbage collection.
//
// TestInACluster runs the programs from the released manifests, as the chart and kustomize apply them to the
// API server, each with its own service account (test/kubelet).
//
// TestDay prints what a day costs: an upgrade, a restore, an exchange of the broker, a canary. Its long form has
// DAY_CLUSTERS=50000 and DAY_BEFORE=PROGRAM, the hyperfleet-platform of an earlier version:
//
//	DAY_CLUSTERS=50000 DAY_BEFORE=/opt/hyperfleet-platform make e2e-platform RUN=TestDay TEST_TIMEOUT=3h
//
// TestNumbers compares this version with an earlier one on the same servers, if NUMBERS_BEFORE has the absolute path of a
// checkout of the earlier version in which make build has run.
//
// The tests simulate two parts of a cluster. They end Jobs at once, because nothing runs Jobs here, and
// sim/ocm applies ManifestWorks.
package platform
