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
	"github.com/hyperfleet/hyperfleet/kit/httpbound"
	"github.com/hyperfleet/hyperfleet/kit/objectstore"
)

// The variables that S3's own tools read.
const (
	envKeyID       = "AWS_ACCESS_KEY_ID"
	envSecret      = "AWS_SECRET_ACCESS_KEY" //nolint:gosec // a variable's name
	envToken       = "AWS_SESSION_TOKEN"     //nolint:gosec // as above
	envEndpointS3  = "AWS_ENDPOINT_URL_S3"
	envEndpoint    = "AWS_ENDPOINT_URL"
	publicEndpoint = ".amazonaws.com"

	storeTimeout = 10 * time.Second
)

// readStored reads a log out of its object store with the reader's own keys; it gives why it
// can't. Who may write RunnerLogs names an endpoint in them: it is called only if the
// environment names it too, or if it is Amazon's.
func readStored(ctx context.Context, where *v1alpha1.StoredLog, env func(string) string) (text, problem string) {
	at := fmt.Sprintf("it is %s at %s", objectstore.URL(where.Bucket, where.Key), where.Endpoint)
	keys := objectstore.Keys{ID: env(envKeyID), Secret: env(envSecret), Token: env(envToken)}

	switch named := cmp.Or(env(envEndpointS3), env(envEndpoint)); {
	case keys.ID == "" || keys.Secret == "":
		return "", at + "; with " + envKeyID + " and " + envSecret + " in the environment it is read here"
	case !mayCall(where.Endpoint, named):
		return "", at + "; with " + envEndpointS3 + "=" + where.Endpoint + " in the environment it is read here"
	}

	ctx, cancel := context.WithTimeout(ctx, storeTimeout)
	defer cancel()

	store, err := objectstore.New(objectstore.Place{
		Endpoint: where.Endpoint, Region: where.Region, Bucket: where.Bucket,
	}, keys, httpbound.Shared())
	if err == nil {
		text, err = store.Get(ctx, where.Key, guest.MaxLog)
	}

	if err != nil {
		return "", at + "; " + err.Error()
	}

	return text, ""
}

func mayCall(endpoint, named string) bool {
	if named != "" {
		return strings.TrimRight(endpoint, "/") == strings.TrimRight(named, "/")
	}

	u, err := url.Parse(endpoint)

	return err == nil && u.Scheme == "https" && strings.HasSuffix(u.Hostname(), publicEndpoint)
}
