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

// Names of the files of a configured runner. They are also the keys of a just-in-time config.
const (
	FileRunner      = ".runner"
	FileCredentials = ".credentials"
	FileRSAParams   = ".credentials_rsaparams"
)

// maxBlob is the maximum size of an encoded just-in-time config in bytes. GitHub's are about 5 kB.
const maxBlob = 64 << 10

// RunnerFile is the file `.runner`, which identifies the runner. All values are strings, as in
// GitHub's just-in-time configs.
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

// CredentialsFile is the file `.credentials`. It names the URL at which a runner exchanges a signed
// assertion for an access token.
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

// RSAParamsFile is the file `.credentials_rsaparams`, which holds the runner's private key. Each
// number is in base64, big endian.
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

// Config is the complete configuration of a runner.
type Config struct {
	Runner      RunnerFile
	Credentials CredentialsFile
	RSA         RSAParamsFile
}

// EncodeFiles encodes the configuration as the three files of a runner, by name.
func (c Config) EncodeFiles() (map[string][]byte, error) {
	files := map[string][]byte{}
	for name, section := range map[string]any{
		FileRunner: c.Runner, FileCredentials: c.Credentials, FileRSAParams: c.RSA,
	} {
		text, err := json.Marshal(section)
		if err != nil {
			return nil, fmt.Errorf("encode %s: %w", name, err)
		}
		files[name] = text
	}
	return files, nil
}

// ParseFiles is the inverse of EncodeFiles.
func ParseFiles(files map[string][]byte) (Config, error) {
	var c Config
	for name, section := range map[string]any{
		FileRunner: &c.Runner, FileCredentials: &c.Credentials, FileRSAParams: &c.RSA,
	} {
		text, ok := files[name]
		if !ok {
			return Config{}, fmt.Errorf("parse runner configuration: %s is missing", name)
		}
		if err := json.Unmarshal(text, section); err != nil {
			return Config{}, fmt.Errorf("parse %s: %w", name, err)
		}
	}
	if c.Runner.ServerURL == "" || c.Credentials.Data.ClientID == "" {
		return Config{}, errors.New("parse runner configuration: server URL or client id is empty")
	}
	return c, nil
}

// EncodeJIT encodes the configuration in the format of GitHub's encoded_jit_config: base64 of a
// JSON object that maps file names to contents in base64.
func EncodeJIT(c Config) (string, error) {
	files, err := c.EncodeFiles()
	if err != nil {
		return "", err
	}
	text, err := json.Marshal(files) // encodes []byte values as base64
	if err != nil {
		return "", fmt.Errorf("encode JIT configuration: %w", err)
	}
	return base64.StdEncoding.EncodeToString(text), nil
}

// DecodeJIT is the inverse of EncodeJIT. The blob is untrusted.
func DecodeJIT(blob string) (Config, error) {
	if len(blob) > maxBlob {
		return Config{}, fmt.Errorf("decode JIT configuration: it has %d bytes, want at most %d", len(blob), maxBlob)
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

// NewRSAParams returns the content of `.credentials_rsaparams` for a private key of two primes.
func NewRSAParams(key *rsa.PrivateKey) RSAParamsFile {
	encode := func(n *big.Int) string { return base64.StdEncoding.EncodeToString(n.Bytes()) }
	return RSAParamsFile{
		D: encode(key.D), DP: encode(key.Precomputed.Dp), DQ: encode(key.Precomputed.Dq),
		Exponent: encode(big.NewInt(int64(key.E))), InverseQ: encode(key.Precomputed.Qinv),
		Modulus: encode(key.N), P: encode(key.Primes[0]), Q: encode(key.Primes[1]),
	}
}

// DecodeKey is the inverse of NewRSAParams. It validates the key.
func (f RSAParamsFile) DecodeKey() (*rsa.PrivateKey, error) {
	var decodeErr error
	decode := func(s string) *big.Int {
		raw, err := base64.StdEncoding.DecodeString(s)
		if err != nil || len(raw) == 0 || len(raw) > 1024 {
			decodeErr = errors.New("parse .credentials_rsaparams: a value is not a base64 number")
			return big.NewInt(0)
		}
		return new(big.Int).SetBytes(raw)
	}
	e := decode(f.Exponent)
	key := &rsa.PrivateKey{
		PublicKey: rsa.PublicKey{N: decode(f.Modulus), E: int(e.Int64())},
		D:         decode(f.D),
		Primes:    []*big.Int{decode(f.P), decode(f.Q)},
	}
	if decodeErr != nil || !e.IsInt64() {
		return nil, errors.Join(decodeErr, errors.New("parse .credentials_rsaparams: the exponent or a number is invalid"))
	}
	if err := key.Validate(); err != nil {
		return nil, fmt.Errorf("check .credentials_rsaparams: %w", err)
	}
	key.Precompute()
	return key, nil
}
