// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package protocol

import (
	"crypto/rsa"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"math/big"
)

// Names of the files of a configured runner, also the keys of a JIT blob.
const (
	FileRunner      = ".runner"
	FileCredentials = ".credentials"
	FileRSAParams   = ".credentials_rsaparams"
)

// maxBlob bounds an encoded JIT blob; GitHub's are about 5 kB.
const maxBlob = 64 << 10

// RunnerFile is `.runner`: who the runner is. All values are strings, as in
// GitHub's JIT configurations.
type RunnerFile struct {
	AgentID       string `json:"AgentId"`
	AgentName     string `json:"AgentName"`
	PoolID        string `json:"PoolId"`
	PoolName      string `json:"PoolName"`
	DisableUpdate string `json:"DisableUpdate"`
	Ephemeral     string `json:"Ephemeral"`
	ServerURL     string `json:"ServerUrl"`
	GitHubURL     string `json:"GitHubUrl"`
	WorkFolder    string `json:"WorkFolder"`
	UseV2Flow     string `json:"UseV2Flow"`
	ServerURLV2   string `json:"ServerUrlV2"`
}

// CredentialsFile is `.credentials`: where a runner trades a signed assertion
// for an access token.
type CredentialsFile struct {
	Scheme string          `json:"Scheme"`
	Data   CredentialsData `json:"Data"`
}

// CredentialsData is the OAuth part of a CredentialsFile.
type CredentialsData struct {
	ClientID         string `json:"ClientId"`
	AuthorizationURL string `json:"AuthorizationUrl"`
	RequireFips      string `json:"RequireFipsCryptography"`
}

// RSAParamsFile is `.credentials_rsaparams`: the runner's private key, each
// number in base64, big endian.
type RSAParamsFile struct {
	D        string `json:"d"`
	DP       string `json:"dp"`
	DQ       string `json:"dq"`
	Exponent string `json:"exponent"`
	InverseQ string `json:"inverseQ"`
	Modulus  string `json:"modulus"`
	P        string `json:"p"`
	Q        string `json:"q"`
}

// Config is everything a configured runner knows.
type Config struct {
	Runner      RunnerFile
	Credentials CredentialsFile
	RSA         RSAParamsFile
}

// Files returns the configuration as the three files a runner keeps.
func (c Config) Files() (map[string][]byte, error) {
	files := map[string][]byte{}
	for name, part := range map[string]any{
		FileRunner: c.Runner, FileCredentials: c.Credentials, FileRSAParams: c.RSA,
	} {
		text, err := json.Marshal(part)
		if err != nil {
			return nil, fmt.Errorf("encode %s: %w", name, err)
		}
		files[name] = text
	}
	return files, nil
}

// ParseFiles is the inverse of Files.
func ParseFiles(files map[string][]byte) (Config, error) {
	var c Config
	for name, part := range map[string]any{
		FileRunner: &c.Runner, FileCredentials: &c.Credentials, FileRSAParams: &c.RSA,
	} {
		text, ok := files[name]
		if !ok {
			return Config{}, fmt.Errorf("read the runner configuration: %s is missing", name)
		}
		if err := json.Unmarshal(text, part); err != nil {
			return Config{}, fmt.Errorf("parse %s: %w", name, err)
		}
	}
	if c.Runner.ServerURL == "" || c.Credentials.Data.ClientID == "" {
		return Config{}, errors.New("read the runner configuration: server URL or client id is empty")
	}
	return c, nil
}

// EncodeJIT packs the configuration the way GitHub's encoded_jit_config is
// packed: base64 of a JSON object that maps file names to base64 contents.
func EncodeJIT(c Config) (string, error) {
	files, err := c.Files()
	if err != nil {
		return "", err
	}
	text, err := json.Marshal(files) // []byte values are written as base64
	if err != nil {
		return "", fmt.Errorf("encode JIT configuration: %w", err)
	}
	return base64.StdEncoding.EncodeToString(text), nil
}

// DecodeJIT is the inverse of EncodeJIT. The blob is untrusted.
func DecodeJIT(blob string) (Config, error) {
	if len(blob) > maxBlob {
		return Config{}, fmt.Errorf("decode JIT configuration: %d bytes, at most %d", len(blob), maxBlob)
	}
	text, err := base64.StdEncoding.DecodeString(blob)
	if err != nil {
		return Config{}, fmt.Errorf("decode JIT configuration: %w", err)
	}
	var files map[string][]byte
	if err := json.Unmarshal(text, &files); err != nil {
		return Config{}, fmt.Errorf("parse JIT configuration: %w", err)
	}
	return ParseFiles(files)
}

// RSAParams writes a private key of two primes as `.credentials_rsaparams` has it.
func RSAParams(key *rsa.PrivateKey) RSAParamsFile {
	enc := func(n *big.Int) string { return base64.StdEncoding.EncodeToString(n.Bytes()) }
	return RSAParamsFile{
		D: enc(key.D), DP: enc(key.Precomputed.Dp), DQ: enc(key.Precomputed.Dq),
		Exponent: enc(big.NewInt(int64(key.E))), InverseQ: enc(key.Precomputed.Qinv),
		Modulus: enc(key.N), P: enc(key.Primes[0]), Q: enc(key.Primes[1]),
	}
}

// Key is the inverse of RSAParams.
func (f RSAParamsFile) Key() (*rsa.PrivateKey, error) {
	var bad error
	dec := func(s string) *big.Int {
		raw, err := base64.StdEncoding.DecodeString(s)
		if err != nil || len(raw) == 0 || len(raw) > 1024 {
			bad = errors.New("parse .credentials_rsaparams: not a base64 number")
			return big.NewInt(0)
		}
		return new(big.Int).SetBytes(raw)
	}
	e := dec(f.Exponent)
	key := &rsa.PrivateKey{
		PublicKey: rsa.PublicKey{N: dec(f.Modulus), E: int(e.Int64())},
		D:         dec(f.D),
		Primes:    []*big.Int{dec(f.P), dec(f.Q)},
	}
	if bad != nil || !e.IsInt64() {
		return nil, errors.Join(bad, errors.New("parse .credentials_rsaparams: bad exponent or number"))
	}
	if err := key.Validate(); err != nil {
		return nil, fmt.Errorf("check .credentials_rsaparams: %w", err)
	}
	key.Precompute()
	return key, nil
}
