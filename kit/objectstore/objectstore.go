// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package objectstore

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strings"

	"github.com/minio/minio-go/v7"
	"github.com/minio/minio-go/v7/pkg/credentials"
	"github.com/minio/minio-go/v7/pkg/s3utils"

	"github.com/hyperfleet/hyperfleet/kit/httpbound"
	"github.com/hyperfleet/hyperfleet/kit/log"
)

// maxMessage bounds what an error says of a store's answer, in letters.
const maxMessage = 300

// Place is where texts are.
type Place struct {
	// Endpoint is the store's base URL, without a path; https, or http on loopback.
	Endpoint string
	// Region that requests are signed for.
	Region string
	// Bucket must be there.
	Bucket string
}

// Keys sign requests. They print redacted.
type Keys struct{ ID, Secret, Token string }

// String hides them.
func (Keys) String() string { return log.Redacted }

// GoString hides them.
func (Keys) GoString() string { return log.Redacted }

// Store is one bucket.
type Store struct {
	client *minio.Client
	place  Place
	keys   Keys
}

// Check says what is wrong with an endpoint; nil if nothing is.
func Check(endpoint string) error {
	u, err := url.Parse(endpoint)

	switch {
	case err != nil, u.Host == "", u.User != nil, strings.Trim(u.Path, "/") != "", u.RawQuery != "", u.Fragment != "":
		return errors.New("it must be a URL such as https://s3.example.com, without a path")
	case !httpbound.Safe(u):
		return errors.New("it must be https: logs go there (http is for loopback)")
	default:
		return nil
	}
}

// CheckBucket says what is wrong with a bucket's name; nil if nothing is.
func CheckBucket(name string) error {
	return s3utils.CheckValidBucketName(name)
}

// CheckPrefix says what is wrong with what keys begin with, which may be empty and has so many
// bytes at most; nil if nothing is.
func CheckPrefix(prefix string, most int) error {
	switch {
	case prefix == "":
		return nil
	case len(prefix) > most:
		return fmt.Errorf("it has more than %d bytes", most)
	default:
		return s3utils.CheckValidObjectName(prefix)
	}
}

// New makes a store; nobody is called.
func New(place Place, keys Keys, transport http.RoundTripper) (*Store, error) {
	if err := Check(place.Endpoint); err != nil {
		return nil, fmt.Errorf("use object store %s: %w", place.Endpoint, err)
	}

	u, err := url.Parse(place.Endpoint)
	if err != nil {
		return nil, fmt.Errorf("use object store %s: %w", place.Endpoint, err)
	}

	client, err := minio.New(u.Host, &minio.Options{
		Creds:  credentials.NewStaticV4(keys.ID, keys.Secret, keys.Token),
		Secure: u.Scheme == "https", Region: place.Region, Transport: transport, MaxRetries: 1,
	})
	if err != nil {
		return nil, fmt.Errorf("use object store %s: %w", place.Endpoint, err)
	}

	return &Store{client: client, place: place, keys: keys}, nil
}

// Put writes a text over what was there. The same text under the same key may be written again.
func (s *Store) Put(ctx context.Context, key, text string) error {
	_, err := s.client.PutObject(ctx, s.place.Bucket, key, strings.NewReader(text), int64(len(text)),
		minio.PutObjectOptions{ContentType: "text/plain; charset=utf-8", DisableMultipart: true})
	if err != nil {
		return s.problem("write", key, err)
	}

	return nil
}

// Get reads a text of at most so many bytes.
func (s *Store) Get(ctx context.Context, key string, most int64) (string, error) {
	object, err := s.client.GetObject(ctx, s.place.Bucket, key, minio.GetObjectOptions{})
	if err != nil {
		return "", s.problem("read", key, err)
	}
	defer object.Close() //nolint:errcheck // it was read

	text, err := io.ReadAll(io.LimitReader(object, most+1))
	if err != nil {
		return "", s.problem("read", key, err)
	}

	if int64(len(text)) > most {
		return "", fmt.Errorf("read %s: it has more than %d bytes", s.at(key), most)
	}

	return string(text), nil
}

// Delete removes a text. One that is not there is no error.
func (s *Store) Delete(ctx context.Context, key string) error {
	if err := s.client.RemoveObject(ctx, s.place.Bucket, key, minio.RemoveObjectOptions{}); err != nil {
		return s.problem("delete", key, err)
	}

	return nil
}

func (s *Store) at(key string) string { return URL(s.place.Bucket, key) }

// URL is the address of a text as S3's tools write it.
func URL(bucket, key string) string { return "s3://" + bucket + "/" + key }

// problem is an error with the fix where the store's word allows one. A store may repeat what
// it was sent: the keys are taken out.
func (s *Store) problem(verb, key string, err error) error {
	text := log.NewRedactor(nil, s.keys.Secret, s.keys.Token).Text(strings.ToValidUTF8(err.Error(), "?"))
	if letters := []rune(text); len(letters) > maxMessage {
		text = string(letters[:maxMessage]) + "..."
	}

	code := minio.ToErrorResponse(err).Code
	if fix := fixes()[code]; fix != "" {
		text = fix
	}

	if code != "" {
		text = code + ": " + text
	}

	return &Error{Code: code, text: fmt.Sprintf("%s %s at %s: %s", verb, s.at(key), s.place.Endpoint, text)}
}

// Error is why a text was not written or read.
type Error struct {
	// Code is the store's word, such as NoSuchBucket; it may be empty.
	Code string

	text string
}

func (e *Error) Error() string { return e.text }

func fixes() map[string]string {
	return map[string]string{
		"AccessDenied":                 "the keys may not: allow them s3:PutObject to write, s3:GetObject to read",
		"AuthorizationHeaderMalformed": "the region is wrong: name the bucket's",
		"InvalidAccessKeyId":           "the store does not know the access key id",
		"NoSuchBucket":                 "there is no such bucket: make it, or name another",
		"NoSuchKey":                    "it is not there (any more)",
		"RequestTimeTooSkewed":         "the clocks differ by too much",
		"SignatureDoesNotMatch":        "the secret access key is wrong",
	}
}
