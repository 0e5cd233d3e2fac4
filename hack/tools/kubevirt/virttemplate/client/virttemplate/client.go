// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

// Package virttemplate replaces the package with the same name, because not every module proxy serves its module.
package virttemplate

import (
	"errors"

	"k8s.io/client-go/rest"
)

// Client is an empty client type.
type Client struct{}

// NewForConfig always returns an error, because this package has no client.
func NewForConfig(*rest.Config) (*Client, error) {
	return nil, errors.New("this program has no client of virt-template")
}

// TemplateV1beta1 returns the client itself.
func (c *Client) TemplateV1beta1() *Client { return c }

// RESTClient returns nil. It is never called, because NewForConfig returns no client.
func (*Client) RESTClient() rest.Interface { return nil }
