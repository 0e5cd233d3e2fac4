// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package jobs

import (
	"cmp"
	"context"
	"fmt"
	"net/url"
	"strings"
	"time"

	"github.com/hyperfleet/hyperfleet/api/guest"
	"github.com/hyperfleet/hyperfleet/api/hyperfleet/v1alpha1"
	"github.com/hyperfleet/hyperfleet/kit/bounds"
	"github.com/hyperfleet/hyperfleet/runners/objectstore"
)

// Environment variables that S3 tools read as well.
const (
	envKeyID       = "AWS_ACCESS_KEY_ID"
	envSecret      = "AWS_SECRET_ACCESS_KEY" //nolint:gosec // a variable's name
	envToken       = "AWS_SESSION_TOKEN"     //nolint:gosec // as above
	envEndpointS3  = "AWS_ENDPOINT_URL_S3"
	envEndpoint    = "AWS_ENDPOINT_URL"
	publicEndpoint = ".amazonaws.com"

	storeTimeout = 10 * time.Second
)

// readStoredLog reads a log from its object store with the keys in the environment of the user. It returns
// the text, or the reason why it cannot read the log. Anyone who can write RunnerLogs chooses the endpoint in
// them. To protect the keys, readStoredLog calls the endpoint only if the environment names the same
// endpoint, or if the endpoint belongs to Amazon.
func readStoredLog(ctx context.Context, stored *v1alpha1.StoredLog, env func(string) string) (text, problem string) {
	location := fmt.Sprintf("the log is %s at %s", objectstore.ObjectURL(stored.Bucket, stored.Key), stored.Endpoint)
	keys := objectstore.Credentials{ID: env(envKeyID), Secret: env(envSecret), Token: env(envToken)}

	switch endpoint := cmp.Or(env(envEndpointS3), env(envEndpoint)); {
	case keys.ID == "" || keys.Secret == "":
		return "", location + "; to read it, set " + envKeyID + " and " + envSecret + " in the environment"
	case !isTrustedEndpoint(stored.Endpoint, endpoint):
		return "", location + "; to read it, set " + envEndpointS3 + "=" + stored.Endpoint + " in the environment"
	}

	ctx, cancel := context.WithTimeout(ctx, storeTimeout)
	defer cancel()

	store, err := objectstore.New(objectstore.Location{
		Endpoint: stored.Endpoint, Region: stored.Region, Bucket: stored.Bucket,
	}, keys, bounds.SharedTransport())
	if err == nil {
		text, err = store.Get(ctx, stored.Key, guest.MaxLog)
	}

	if err != nil {
		return "", location + "; " + err.Error()
	}

	return text, ""
}

// isTrustedEndpoint reports whether the endpoint is the same as the configured one. If none is configured, it
// reports whether the endpoint is an https URL of amazonaws.com.
func isTrustedEndpoint(endpoint, configured string) bool {
	if configured != "" {
		return strings.TrimRight(endpoint, "/") == strings.TrimRight(configured, "/")
	}

	u, err := url.Parse(endpoint)

	return err == nil && u.Scheme == "https" && strings.HasSuffix(u.Hostname(), publicEndpoint)
}
