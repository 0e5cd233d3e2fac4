// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

// Package virttemplate stands in for the package of that name, as virt-template-api does.
package virttemplate

import (
	"errors"

	"k8s.io/client-go/rest"
)

// Client has no server.
type Client struct{}

// NewForConfig refuses: there is no such client here.
func NewForConfig(*rest.Config) (*Client, error) {
	return nil, errors.New("this program has no client of virt-template")
}

// TemplateV1beta1 is the client of that version.
func (c *Client) TemplateV1beta1() *Client { return c }

// RESTClient is nil: NewForConfig gives no client.
func (*Client) RESTClient() rest.Interface { return nil }
