// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package scaleway

import (
	"context"
	"slices"
	"strings"

	iam "github.com/scaleway/scaleway-sdk-go/api/iam/v1alpha1"
	"github.com/scaleway/scaleway-sdk-go/scw"
)

// EnsureKey registers a public key, in the format of authorized_keys, with the project if it is not
// registered. It returns an error if the key is registered but disabled. A server gets the keys of its
// project when it is installed, so the key must be registered before the server is ordered.
func (c *Client) EnsureKey(ctx context.Context, name, publicKey string) error {
	keys, err := c.listKeys(ctx)
	if err != nil {
		return err
	}

	want := keyOf(publicKey)
	if slices.ContainsFunc(keys, func(k *iam.SSHKey) bool { return keyOf(k.PublicKey) == want && !k.Disabled }) {
		return nil
	}

	// The key is not enabled, so if it is registered, it is disabled.
	i := slices.IndexFunc(keys, func(k *iam.SSHKey) bool { return keyOf(k.PublicKey) == want })
	if i >= 0 {
		return &Error{Kind: Rejected, Message: "SSH key " + keys[i].Name +
			" is disabled in the project: enable it, or use another key"}
	}

	return c.call(ctx, "register SSH key "+name, func(opt scw.RequestOption) error {
		_, err := c.keys.CreateSSHKey(&iam.CreateSSHKeyRequest{
			Name: name, PublicKey: strings.TrimSpace(publicKey), ProjectID: c.project,
		}, opt)

		return err
	})
}

func (c *Client) listKeys(ctx context.Context) ([]*iam.SSHKey, error) {
	var keys []*iam.SSHKey

	size := uint32(pageSize)

	err := c.call(ctx, "list SSH keys", func(opt scw.RequestOption) error {
		list, err := c.keys.ListSSHKeys(&iam.ListSSHKeysRequest{ProjectID: &c.project, PageSize: &size}, opt, scw.WithAllPages())
		if err == nil {
			keys = list.SSHKeys
		}

		return err
	})

	return keys, err
}

// keyOf returns the type and the key of a line of authorized_keys, without the comment.
func keyOf(line string) string {
	fields := strings.Fields(line)

	return strings.Join(fields[:min(len(fields), 2)], " ")
}
