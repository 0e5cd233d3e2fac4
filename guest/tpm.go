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
	// tpmTimeout bounds what the TPM does. An emulator makes an RSA key in a second or two.
	tpmTimeout = 2 * time.Minute
	// maxChain bounds the operator's answer.
	maxChain = 64 << 10
)

// deviceIdentity has the TPM make a device identity and the operator certify it, and gives
// the agent's configuration of the method.
func (s *Service) deviceIdentity(ctx context.Context, dir string, cfg *guest.SPIFFE) (string, error) {
	device := s.path(cfg.TPMDevice)

	key, err := s.makeKey(ctx, device)
	if err != nil {
		return "", err
	}

	chain, err := s.certify(ctx, *cfg.DevID, key)
	if err != nil {
		return "", err
	}

	cfg.DevID = nil // it is worth nothing any more

	files, err := key.Write(dir, device, chain)
	if err != nil {
		return "", failed(guest.ReasonAttestationUnavailable, "%w", err)
	}

	return files.Plugin(), nil
}

// makeKey waits for the TPM, within reason: a device's driver takes no deadline.
func (s *Service) makeKey(ctx context.Context, device string) (*devid.Key, error) {
	type result struct {
		key devid.Key
		err error
	}

	made := make(chan result, 1)

	go func() {
		key, err := devid.Make(device)
		made <- result{key, err}
	}()

	select {
	case got := <-made:
		if got.err != nil {
			return nil, failed(guest.ReasonAttestationUnavailable, "make the machine's device identity: %w", got.err)
		}

		return &got.key, nil
	case <-s.clock.After(tpmTimeout):
		return nil, failed(guest.ReasonAttestationUnavailable, "the TPM %s made no key within %s", device, tpmTimeout)
	case <-ctx.Done():
		return nil, stopped()
	}
}

// certify asks the operator for the key's certificate chain.
func (s *Service) certify(ctx context.Context, to guest.Callback, key *devid.Key) (string, error) {
	client, err := operatorClient("spiffe.devid", to.CABundle, fetchTimeout)
	if err != nil {
		return "", failed(guest.ReasonConfigInvalid, "%w", err)
	}

	defer client.CloseIdleConnections()

	body, err := json.Marshal(guest.DevIDRequest{Public: key.Request, EKCertificate: key.EKCertificate})
	if err != nil {
		return "", failed(guest.ReasonAttestationUnavailable, "write request for the device identity's certificate: %w", err)
	}

	s.log.Info("asks for the certificate of its device identity",
		"key", fmt.Sprintf("%x", sha256.Sum256(key.Request)))

	return insist(ctx, s, persistence{
		what: "the certificate of its device identity", reason: guest.ReasonAttestationTimeout,
		lacks: "the operator certified no device identity",
	}, func(ctx context.Context) (string, time.Duration, error) {
		answer, after, err := question{
			what: "the certificate of the device identity", url: to.URL, bearer: to.Code, body: body, most: maxChain,
		}.ask(ctx, client, func(said guest.Refusal) error {
			return failed(guest.ReasonAttestationRefused, "the device identity is not certified: %s", said.Message)
		})
		if err != nil {
			return "", after, err
		}

		chain, err := readChain(answer)

		return chain, 0, err
	})
}

// readChain reads the operator's answer. Another try may bring a better one: it is always
// the same certificate.
func readChain(answer []byte) (string, error) {
	var out guest.DevIDCertificate

	if len(answer) > maxChain {
		return "", fmt.Errorf("read the certificate of the device identity: the answer has more than %d bytes", maxChain)
	}

	if err := json.Unmarshal(answer, &out); err != nil {
		return "", fmt.Errorf("read the certificate of the device identity: %w", jsonError(err))
	}

	if block, _ := pem.Decode([]byte(out.Chain)); block == nil || block.Type != "CERTIFICATE" {
		return "", errors.New("read the certificate of the device identity: the answer holds none in PEM")
	}

	return out.Chain, nil
}
