// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

// Package config reads a program's configuration into one typed struct, from four
// places, each over the one before:
//
//	defaults -> YAML file -> HYPERFLEET_* environment -> flags
//
// Keys are the struct's JSON names joined by dots. From them follow the variable
// (leaderElection.retryPeriod: HYPERFLEET_LEADER_ELECTION_RETRY_PERIOD) and the flag
// (--leader-election-retry-period). Lists and maps are replaced as a whole; in
// variables and flags they are written a,b and k=v,k2=v2.
//
// Everything is strict: the file says its apiVersion and kind; an unknown key or
// variable is an error that names the nearest known one; a value of the wrong type is
// an error that says what is wanted. All errors are reported at once.
//
// Secrets are no part of a configuration: a field of type SecretFile names a file,
// which is read when the secret is needed.
package config
