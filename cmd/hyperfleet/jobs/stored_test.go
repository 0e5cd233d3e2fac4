// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package jobs

import (
	"strings"
	"testing"

	"github.com/hyperfleet/hyperfleet/api/hyperfleet/v1alpha1"
	"github.com/hyperfleet/hyperfleet/kit/httpbound"
	"github.com/hyperfleet/hyperfleet/kit/objectstore"
	"github.com/hyperfleet/hyperfleet/test/s3"
)

// A log in a store is read with the reader's own keys, at a server that the reader names.
func TestReadStored(t *testing.T) {
	t.Parallel()

	server := s3.Start(t)
	server.Bucket(t, "logs")

	store, err := objectstore.New(objectstore.Place{Endpoint: server.URL, Region: s3.Region, Bucket: "logs"},
		objectstore.Keys{ID: s3.KeyID, Secret: s3.Secret}, httpbound.Shared())
	if err != nil {
		t.Fatal(err)
	}

	if err := store.Put(t.Context(), "ci/linux-a.log", "output\n"); err != nil {
		t.Fatal(err)
	}

	where := &v1alpha1.StoredLog{Endpoint: server.URL, Region: s3.Region, Bucket: "logs", Key: "ci/linux-a.log", Bytes: 7}
	at := "it is s3://logs/ci/linux-a.log at " + server.URL + "; "

	for name, tc := range map[string]struct {
		env     map[string]string
		problem string
	}{
		"keys and server":   {map[string]string{envKeyID: s3.KeyID, envSecret: s3.Secret, envEndpointS3: server.URL + "/"}, ""},
		"the general name":  {map[string]string{envKeyID: s3.KeyID, envSecret: s3.Secret, envEndpoint: server.URL}, ""},
		"no keys":           {nil, at + "with AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY in the environment it is read here"},
		"no server":         {map[string]string{envKeyID: s3.KeyID, envSecret: s3.Secret}, at + "with AWS_ENDPOINT_URL_S3=" + server.URL},
		"another server":    {map[string]string{envKeyID: s3.KeyID, envSecret: s3.Secret, envEndpointS3: "https://s3.example.com"}, at + "with AWS_ENDPOINT_URL_S3="},
		"keys that may not": {map[string]string{envKeyID: s3.KeyID, envSecret: "another", envEndpointS3: server.URL}, at + "read s3://logs/ci/linux-a.log"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()

			text, problem := readStored(t.Context(), where, func(name string) string { return tc.env[name] })
			if !strings.HasPrefix(problem, tc.problem) || (problem == "") != (tc.problem == "") || (problem == "") != (text == "output\n") {
				t.Errorf("%q, %q; want %q", text, problem, tc.problem)
			}
		})
	}
}

func TestWhichStoresAreCalledUnasked(t *testing.T) {
	t.Parallel()

	for endpoint, want := range map[string]bool{
		"https://s3.eu-central-1.amazonaws.com": true, "http://s3.eu-central-1.amazonaws.com": false,
		"https://s3.example.com": false, "https://amazonaws.com.example.com": false, "https://evil-amazonaws.com": false,
		"https://s3.amazonaws.com.example.com": false,
	} {
		if got := mayCall(endpoint, ""); got != want {
			t.Errorf("mayCall(%s) = %v", endpoint, got)
		}
	}
}
