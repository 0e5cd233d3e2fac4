// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

// Package scaleway orders, finds, restarts, wipes and gives back Macs at Scaleway's Apple
// silicon API (https://www.scaleway.com/en/developers/api/apple-silicon/), through
// scaleway-sdk-go.
//
// What a caller may do about an error is its kind:
//
//	NotFound     the server, operating system or type is not there
//	OutOfStock   wait: no such Mac is free
//	Quota        wait, or ask for more: the organization's quota is used up
//	Busy         wait: the server is in the middle of something, or too many calls were made
//	Denied       a person has to change the credentials or their permissions
//	Rejected     a person has to change what was asked for
//	Unavailable  try again: the API did not answer, or answered 5xx
//
// An order is never repeated by itself, because an order that got no answer may have been
// carried out. Its name tells: look for a server of that name before another order
// ([Client.Find]). All other calls are tried three times.
package scaleway
