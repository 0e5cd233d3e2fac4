// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package guest

import (
	"context"
	"crypto/sha256"
	"encoding/json"
	"encoding/pem"
	"errors"
	"fmt"
	"time"

	"github.com/hyperfleet/hyperfleet/api/guest"
	"github.com/hyperfleet/hyperfleet/guest/devid"
)

const (
	// tpmTimeout limits the creation of the key. An emulator creates an RSA key in one or two seconds.
	tpmTimeout = 2 * time.Minute
	// maxChainBytes limits the size of the operator's response.
	maxChainBytes = 64 << 10
)

// createDeviceIdentity creates a key in the TPM, gets a certificate for it from the operator, writes both to
// dir and returns the agent's configuration of the attestation method.
func (s *Service) createDeviceIdentity(ctx context.Context, dir string, cfg *guest.SPIFFE) (string, error) {
	device := s.path(cfg.TPMDevice)

	key, err := s.createKey(ctx, device)
	if err != nil {
		return "", err
	}

	chain, err := s.requestCertificate(ctx, *cfg.DevID, key)
	if err != nil {
		return "", err
	}

	cfg.DevID = nil // the code is no longer needed

	files, err := key.WriteFiles(dir, device, chain)
	if err != nil {
		return "", newFailure(guest.ReasonAttestationUnavailable, "%w", err)
	}

	return files.NodeAttestor(), nil
}

// createKey creates a key in the TPM. It returns after tpmTimeout, because the driver of the device supports
// no deadline. The call to the TPM can then continue in the background.
func (s *Service) createKey(ctx context.Context, device string) (*devid.Key, error) {
	type result struct {
		key devid.Key
		err error
	}

	results := make(chan result, 1)

	go func() {
		key, err := devid.CreateKey(device)
		results <- result{key, err}
	}()

	select {
	case got := <-results:
		if got.err != nil {
			return nil, newFailure(guest.ReasonAttestationUnavailable, "create the machine's device identity: %w", got.err)
		}

		return &got.key, nil
	case <-s.clock.After(tpmTimeout):
		return nil, newFailure(guest.ReasonAttestationUnavailable, "the TPM %s created no key within %s", device, tpmTimeout)
	case <-ctx.Done():
		return nil, newStoppedError()
	}
}

// requestCertificate requests the key's certificate chain from the operator.
func (s *Service) requestCertificate(ctx context.Context, callback guest.Callback, key *devid.Key) (string, error) {
	client, err := newOperatorClient("spiffe.devid", callback.CABundle, fetchTimeout)
	if err != nil {
		return "", newFailure(guest.ReasonConfigInvalid, "%w", err)
	}

	defer client.CloseIdleConnections()

	body, err := json.Marshal(guest.DevIDRequest{Public: key.PublicForRequest, EKCertificate: key.EKCertificate})
	if err != nil {
		return "", newFailure(guest.ReasonAttestationUnavailable, "encode request for the device identity's certificate: %w", err)
	}

	s.log.Info("requesting the certificate of the device identity",
		"key", fmt.Sprintf("%x", sha256.Sum256(key.PublicForRequest)))

	return fetchWithRetry(ctx, s, fetchTarget{
		object: "the certificate of the device identity", reason: guest.ReasonAttestationTimeout,
		failure: "the operator certified no device identity",
	}, func(ctx context.Context) (string, time.Duration, error) {
		response, delay, err := operatorRequest{
			object: "the certificate of the device identity", url: callback.URL, bearer: callback.Code, body: body,
			maxBytes: maxChainBytes,
		}.send(ctx, client, func(refusal guest.Refusal) error {
			return newFailure(guest.ReasonAttestationRefused, "the device identity is not certified: %s", refusal.Message)
		})
		if err != nil {
			return "", delay, err
		}

		chain, err := parseChain(response)

		return chain, 0, err
	})
}

// parseChain parses the operator's response. Its errors are transient, because the operator returns the same
// certificate to each request.
func parseChain(response []byte) (string, error) {
	var out guest.DevIDCertificate

	if len(response) > maxChainBytes {
		return "", fmt.Errorf("parse the certificate of the device identity: the response has more than %d bytes", maxChainBytes)
	}

	if err := json.Unmarshal(response, &out); err != nil {
		return "", fmt.Errorf("parse the certificate of the device identity: %w", describeJSONError(err))
	}

	if block, _ := pem.Decode([]byte(out.Chain)); block == nil || block.Type != "CERTIFICATE" {
		return "", errors.New("parse the certificate of the device identity: the response contains no certificate in PEM")
	}

	return out.Chain, nil
}
