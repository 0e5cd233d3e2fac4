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

	"github.com/hyperfleet/hyperfleet/kit/bounds"
	"github.com/hyperfleet/hyperfleet/kit/log"
)

// maxMessageRunes is the maximum length of the store's message in an error.
const maxMessageRunes = 300

// Location is the location of a bucket.
type Location struct {
	// Endpoint is the store's base URL without a path. It must be https, or http on loopback.
	Endpoint string
	// Region is the region that requests are signed for.
	Region string
	// Bucket is the name of an existing bucket.
	Bucket string
}

// Credentials sign requests. They are redacted when printed.
type Credentials struct{ ID, Secret, Token string }

// String returns log.Redacted.
func (Credentials) String() string { return log.Redacted }

// GoString returns log.Redacted.
func (Credentials) GoString() string { return log.Redacted }

// Store is a client for one bucket.
type Store struct {
	client      *minio.Client
	location    Location
	credentials Credentials
}

// ValidateEndpoint returns an error if the endpoint is invalid.
func ValidateEndpoint(endpoint string) error {
	u, err := url.Parse(endpoint)

	switch {
	case err != nil, u.Host == "", u.User != nil, strings.Trim(u.Path, "/") != "", u.RawQuery != "", u.Fragment != "":
		return errors.New("it must be a URL such as https://s3.example.com, without a path")
	case !bounds.IsSecureURL(u):
		return errors.New("it must be https, because logs are sent to it (http is allowed on loopback only)")
	default:
		return nil
	}
}

// ValidateBucket returns an error if the name of the bucket is invalid.
func ValidateBucket(name string) error {
	return s3utils.CheckValidBucketName(name)
}

// ValidatePrefix returns an error if the prefix of keys is invalid or has more bytes than the
// limit. An empty prefix is valid.
func ValidatePrefix(prefix string, limit int) error {
	switch {
	case prefix == "":
		return nil
	case len(prefix) > limit:
		return fmt.Errorf("it has more than %d bytes", limit)
	default:
		return s3utils.CheckValidObjectName(prefix)
	}
}

// New returns a Store. It sends no request.
func New(location Location, keys Credentials, transport http.RoundTripper) (*Store, error) {
	if err := ValidateEndpoint(location.Endpoint); err != nil {
		return nil, fmt.Errorf("use object store %s: %w", location.Endpoint, err)
	}

	u, err := url.Parse(location.Endpoint)
	if err != nil {
		return nil, fmt.Errorf("use object store %s: %w", location.Endpoint, err)
	}

	client, err := minio.New(u.Host, &minio.Options{
		Creds:  credentials.NewStaticV4(keys.ID, keys.Secret, keys.Token),
		Secure: u.Scheme == "https", Region: location.Region, Transport: transport, MaxRetries: 1,
	})
	if err != nil {
		return nil, fmt.Errorf("use object store %s: %w", location.Endpoint, err)
	}

	return &Store{client: client, location: location, credentials: keys}, nil
}

// Put writes a text and replaces an existing text with the same key. It is idempotent.
func (s *Store) Put(ctx context.Context, key, text string) error {
	_, err := s.client.PutObject(ctx, s.location.Bucket, key, strings.NewReader(text), int64(len(text)),
		minio.PutObjectOptions{ContentType: "text/plain; charset=utf-8", DisableMultipart: true})
	if err != nil {
		return s.newError("write", key, err)
	}

	return nil
}

// Get reads a text. It returns an error if the text has more bytes than the limit.
func (s *Store) Get(ctx context.Context, key string, limit int64) (string, error) {
	object, err := s.client.GetObject(ctx, s.location.Bucket, key, minio.GetObjectOptions{})
	if err != nil {
		return "", s.newError("read", key, err)
	}
	defer object.Close() //nolint:errcheck // it was only read

	text, err := io.ReadAll(io.LimitReader(object, limit+1))
	if err != nil {
		return "", s.newError("read", key, err)
	}

	if int64(len(text)) > limit {
		return "", fmt.Errorf("read %s: it has more than %d bytes", s.objectURL(key), limit)
	}

	return string(text), nil
}

// Delete deletes a text. It returns nil if the text does not exist.
func (s *Store) Delete(ctx context.Context, key string) error {
	if err := s.client.RemoveObject(ctx, s.location.Bucket, key, minio.RemoveObjectOptions{}); err != nil {
		return s.newError("delete", key, err)
	}

	return nil
}

func (s *Store) objectURL(key string) string { return ObjectURL(s.location.Bucket, key) }

// ObjectURL returns the s3:// URL of a text.
func ObjectURL(bucket, key string) string { return "s3://" + bucket + "/" + key }

// newError returns an error with the store's error code and, if the code is known, the fix in place
// of the store's message. A store may repeat parts of the request in its message, so the
// credentials are redacted.
func (s *Store) newError(verb, key string, err error) error {
	text := log.NewRedactor(nil, s.credentials.Secret, s.credentials.Token).Redact(strings.ToValidUTF8(err.Error(), "?"))
	if runes := []rune(text); len(runes) > maxMessageRunes {
		text = string(runes[:maxMessageRunes]) + "..."
	}

	code := minio.ToErrorResponse(err).Code
	if fix := fixesByCode()[code]; fix != "" {
		text = fix
	}

	if code != "" {
		text = code + ": " + text
	}

	return &Error{Code: code, text: fmt.Sprintf("%s %s at %s: %s", verb, s.objectURL(key), s.location.Endpoint, text)}
}

// Error is an error of the store.
type Error struct {
	// Code is the store's error code, such as NoSuchBucket. It may be empty.
	Code string

	text string
}

func (e *Error) Error() string { return e.text }

// fixesByCode returns the explanation of each known error code, with the fix.
func fixesByCode() map[string]string {
	return map[string]string{
		"AccessDenied":                 "the credentials have no permission: grant s3:PutObject to write, s3:GetObject to read",
		"AuthorizationHeaderMalformed": "the region is wrong: use the region of the bucket",
		"InvalidAccessKeyId":           "the access key id is unknown to the store",
		"NoSuchBucket":                 "the bucket does not exist: create it, or use another bucket",
		"NoSuchKey":                    "the object does not exist",
		"RequestTimeTooSkewed":         "the clock of this machine and that of the store differ too much: synchronize them",
		"SignatureDoesNotMatch":        "the secret access key is wrong",
	}
}
