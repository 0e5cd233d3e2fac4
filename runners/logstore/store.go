// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package logstore

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"net/http"

	config "github.com/hyperfleet/hyperfleet/api/config/v1alpha1"
	"github.com/hyperfleet/hyperfleet/api/hyperfleet/v1alpha1"
	"github.com/hyperfleet/hyperfleet/kit/credential"
	"github.com/hyperfleet/hyperfleet/runners/objectstore"
)

const (
	// Keys of the Secret with the credentials of the store.
	keyOfID     = "accessKeyId"
	keyOfSecret = "secretAccessKey"
	keyOfToken  = "sessionToken"

	// hashLength is how many hexadecimal digits of the digest of a log are in its object key.
	hashLength = 12
)

// Secrets reads a value of a Secret that the caller sends to a server.
type Secrets interface {
	ReadValueFor(
		ctx context.Context, sel v1alpha1.SecretKeySelector, namespace string, destination credential.Destination,
	) (string, error)
}

// Store writes to the configured bucket.
type Store struct {
	Config config.LogStore
	// Secrets reads the credentials for each write, so that the store uses rotated credentials at once.
	Secrets   Secrets
	Transport http.RoundTripper
}

// objectKey returns the object key of a log: the prefix, the namespace, the claim, and a hash of the text, so a
// repeated write, for example after a crash, writes the same object.
func (s *Store) objectKey(log *v1alpha1.RunnerLog) string {
	sum := sha256.Sum256([]byte(log.Spec.Text))

	return s.Config.Prefix + log.Namespace + "/" + log.Spec.Claim + "-" + hex.EncodeToString(sum[:])[:hashLength] + ".log"
}

// location returns the endpoint, region and bucket of the store.
func (s *Store) location() objectstore.Location {
	return objectstore.Location{Endpoint: s.Config.Endpoint, Region: s.Config.Region, Bucket: s.Config.Bucket}
}

// open reads the credentials and returns a client. It does not call the store.
func (s *Store) open(ctx context.Context) (*objectstore.Store, error) {
	keys, err := s.readKeys(ctx)
	if err != nil {
		return nil, err
	}

	return objectstore.New(s.location(), keys, s.Transport)
}

// put writes a log, and returns its location.
func (s *Store) put(ctx context.Context, log *v1alpha1.RunnerLog) (*v1alpha1.StoredLog, error) {
	location := s.location()

	store, err := s.open(ctx)
	if err != nil {
		return nil, err
	}

	key := s.objectKey(log)
	if err := store.Put(ctx, key, log.Spec.Text); err != nil {
		return nil, err
	}

	return &v1alpha1.StoredLog{
		Endpoint: location.Endpoint, Region: location.Region, Bucket: location.Bucket, Key: key, Bytes: int64(len(log.Spec.Text)),
	}, nil
}

// readKeys reads the credentials from the Secret in the operator's namespace. An administrator writes both
// the Secret and the endpoint, but the list of allowed servers in the Secret still applies.
func (s *Store) readKeys(ctx context.Context) (objectstore.Credentials, error) {
	var out objectstore.Credentials

	optional := true

	for _, part := range []struct {
		key      string
		optional *bool
		target   *string
	}{{keyOfID, nil, &out.ID}, {keyOfSecret, nil, &out.Secret}, {keyOfToken, &optional, &out.Token}} {
		value, err := s.Secrets.ReadValueFor(ctx, v1alpha1.SecretKeySelector{
			Name: s.Config.Secret, Key: part.key, Optional: part.optional,
		}, "", credential.DestinationOfURL(s.Config.Endpoint))
		if err != nil {
			return objectstore.Credentials{}, fmt.Errorf("read credentials of log store: %w", err)
		}

		*part.target = value
	}

	return out, nil
}
