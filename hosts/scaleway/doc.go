// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

// Package scaleway orders, finds, restarts, wipes and deletes Macs with Scaleway's Apple silicon
// API (https://www.scaleway.com/en/developers/api/apple-silicon/), through scaleway-sdk-go.
//
// The kind of an error tells the caller what to do:
//
//	NotFound     the server, operating system or type does not exist
//	OutOfStock   wait: no Mac of this type is available
//	Quota        wait, or ask for a higher quota: the organization's quota is used up
//	Busy         wait: the server is changing its state, or too many calls were made
//	Denied       a person has to change the credentials or their permissions
//	Rejected     a person has to change the request
//	Unavailable  retry: the API did not respond, or responded with 5xx
//
// The client never retries an order, because an order whose response was lost may have been
// executed. Before the caller orders again, it must look for a server with the name of the order
// ([Client.Find]). Restarts and other POST requests are not retried either. All other calls are
// attempted up to three times.
package scaleway
