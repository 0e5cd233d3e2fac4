// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

// Package httpcall sends the HTTP calls of task files (api_call). It sends the fleet API's token only to
// the fleet API and not to other servers. It limits the number of attempts and the size of responses.
package httpcall
