// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

// Package events is the contract between Sentinel and adapters: CloudEvents 1.0 that say
// which resource to look at, never what it should be. Who gets one reads the resource.
package events
