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
	"github.com/hyperfleet/hyperfleet/kit/objectstore"
)

// Keys of the Secret.
const (
	secretKeyID  = "accessKeyId"
	secretKey    = "secretAccessKey"
	secretToken  = "sessionToken"
	hashedLetter = 12
)

// Secrets reads a value of a Secret, which is sent to a server.
type Secrets interface {
	ValueFor(ctx context.Context, sel v1alpha1.SecretKeySelector, from string, to credential.Sent) (string, error)
}

// Store writes to the configured bucket.
type Store struct {
	Config config.LogStore
	// Secrets reads the keys on each write, so that rotated ones count at once.
	Secrets   Secrets
	Transport http.RoundTripper
}

// key is where a log goes. It is made of what is in the log: whoever writes it again, after a
// kill or when its job is known, writes the same object.
func (s *Store) key(log *v1alpha1.RunnerLog) string {
	sum := sha256.Sum256([]byte(log.Spec.Text))

	return s.Config.Prefix + log.Namespace + "/" + log.Spec.Claim + "-" + hex.EncodeToString(sum[:])[:hashedLetter] + ".log"
}

// place is where logs are.
func (s *Store) place() objectstore.Place {
	return objectstore.Place{Endpoint: s.Config.Endpoint, Region: s.Config.Region, Bucket: s.Config.Bucket}
}

// open reads the keys; the store is not called.
func (s *Store) open(ctx context.Context) (*objectstore.Store, error) {
	keys, err := s.keys(ctx)
	if err != nil {
		return nil, err
	}

	return objectstore.New(s.place(), keys, s.Transport)
}

// put writes a log, and says where it is.
func (s *Store) put(ctx context.Context, log *v1alpha1.RunnerLog) (*v1alpha1.StoredLog, error) {
	place := s.place()

	store, err := s.open(ctx)
	if err != nil {
		return nil, err
	}

	key := s.key(log)
	if err := store.Put(ctx, key, log.Spec.Text); err != nil {
		return nil, err
	}

	return &v1alpha1.StoredLog{
		Endpoint: place.Endpoint, Region: place.Region, Bucket: place.Bucket, Key: key, Bytes: int64(len(log.Spec.Text)),
	}, nil
}

// keys reads the Secret, in the operator's own namespace. An administrator writes it and the
// endpoint; the Secret's own list of servers counts all the same.
func (s *Store) keys(ctx context.Context) (objectstore.Keys, error) {
	var out objectstore.Keys

	optional := true

	for _, part := range []struct {
		key      string
		optional *bool
		into     *string
	}{{secretKeyID, nil, &out.ID}, {secretKey, nil, &out.Secret}, {secretToken, &optional, &out.Token}} {
		value, err := s.Secrets.ValueFor(ctx, v1alpha1.SecretKeySelector{
			Name: s.Config.Secret, Key: part.key, Optional: part.optional,
		}, "", credential.ToURL(s.Config.Endpoint))
		if err != nil {
			return objectstore.Keys{}, fmt.Errorf("read keys of log store: %w", err)
		}

		*part.into = value
	}

	return out, nil
}
