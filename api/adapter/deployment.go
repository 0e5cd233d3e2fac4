// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package adapter

import "time"

// Deployment configures `hyperfleet-platform adapter serve`. A HYPERFLEET_* environment variable
// overrides the file, and a flag overrides both.
type Deployment struct {
	Adapter Identity  `yaml:"adapter"`
	Log     LogOutput `yaml:"log"`
	// DebugConfig is true to serve the configuration, with secrets redacted, at /config.
	DebugConfig bool    `yaml:"debug_config"`
	Clients     Clients `yaml:"clients"`
	Events      Events  `yaml:"events"`
	// IdentityKeyFile is the path of the file with the key of the HMACs that the adapter writes to its
	// objects. The key has at least 32 bytes. All replicas of the adapter need the same key, and so does
	// `hyperfleet-platform sweep`, which deletes orphaned objects.
	IdentityKeyFile string `yaml:"identity_key_file"`
	// Environment is the list of the environment variables that task files may read. Task files cannot
	// read other variables.
	Environment []string `yaml:"environment"`
	// EventTimeout is the timeout for the work on one event. Default: 2m.
	EventTimeout time.Duration `yaml:"event_timeout"`
	// HealthAddress is the address on which /healthz and /readyz are served. Default: :8080.
	HealthAddress string `yaml:"health_address"`
	// MetricsAddress is the address on which /metrics is served. Default: :9090.
	MetricsAddress string `yaml:"metrics_address"`
}

// Identity is the identity of the adapter.
type Identity struct {
	// Name is the value of the label hyperfleet.io/adapter and of the field adapter in reports. It must
	// be a DNS label. Required.
	Name string `yaml:"name"`
	// Version is the author's version of the task file. Every report contains it.
	Version string `yaml:"version"`
	// FrameworkVersion is the version of the program for which the task file was written. Its major and
	// minor version must match.
	FrameworkVersion string `yaml:"frameworkVersion"`
}

// LogOutput configures the log.
type LogOutput struct {
	// Level is the lowest level that is logged: debug, info, warn or error. Default: info.
	Level string `yaml:"level"`
	// Format is the format of the log: json or text. Default: json.
	Format string `yaml:"format"`
	// Output is the destination of the log: stdout or stderr. Default: stdout.
	Output string `yaml:"output"`
}

// Sources of events.
const (
	// SourceAPI is the fleet API's change feed.
	SourceAPI = "api"
	// SourceBroker is the broker to which Sentinel publishes events.
	SourceBroker = "broker"
)

// Events configures how the adapter gets its events.
type Events struct {
	// Source is the source of events: api or broker. Default: broker if clients.broker is set, and api
	// otherwise.
	Source string `yaml:"source"`
	// ResourceType is the collection whose changes the adapter reads, for example clusters. Required with
	// source api. Each adapter reads the changes independently of other adapters.
	ResourceType string `yaml:"resource_type"`
	// ResourceSelector is a map of labels that must all match. With source broker, set it in Sentinel
	// instead.
	ResourceSelector map[string]string `yaml:"resource_selector"`
	// Variant is the name of one of several versions of the adapter that run at the same time, for example canary. Each
	// handles the resources that match its resource_selector, so the selectors must not overlap. Default: none.
	Variant string `yaml:"variant"`
	// MaxAgeNotReconciled is the resync period of a resource that is not reconciled: the time without a
	// change after which the resource is handled again. Default: 10s.
	MaxAgeNotReconciled time.Duration `yaml:"max_age_not_reconciled"`
	// MaxAgeReconciled is the resync period of a resource that is reconciled. Default: 30m.
	MaxAgeReconciled time.Duration `yaml:"max_age_reconciled"`
	// Parallelism is the maximum number of resources that are handled concurrently. Default: 8.
	Parallelism int `yaml:"parallelism"`
	// MaxTries is the maximum number of attempts to handle an event before the adapter waits for
	// max_age_not_reconciled. Default: 10.
	MaxTries int `yaml:"max_tries"`
}

// FromBroker returns whether events come from a broker.
func (d *Deployment) FromBroker() bool {
	if d.Events.Source != "" {
		return d.Events.Source == SourceBroker
	}

	return d.Clients.Broker != Broker{}
}

// Clients configures the APIs that the adapter calls.
type Clients struct {
	HyperFleetAPI HyperFleetAPI `yaml:"hyperfleet_api"`
	Broker        Broker        `yaml:"broker"`
	Kubernetes    Kubernetes    `yaml:"kubernetes"`
	Maestro       *Maestro      `yaml:"maestro"`
}

// MaxAttempts is the maximum of retry_attempts.
const MaxAttempts = 10

// HyperFleetAPI configures the client of the fleet API.
type HyperFleetAPI struct {
	// BaseURL is the URL without the path, for example http://hyperfleet-api:8000. Required.
	BaseURL string `yaml:"base_url"`
	// CAFile is the path of a CA bundle for https, if the system does not trust the authority of the
	// API's certificate.
	CAFile string `yaml:"ca_file"`
	// Version is the version of the API. Default: v1.
	Version string `yaml:"version"`
	// Timeout is the timeout of one attempt. Default: 10s.
	Timeout time.Duration `yaml:"timeout"`
	// RetryAttempts is the maximum number of attempts, at most 10. Default: 3.
	RetryAttempts int `yaml:"retry_attempts"`
	// RetryBackoff is the back-off strategy: exponential, linear or constant. Default: exponential.
	RetryBackoff string `yaml:"retry_backoff"`
	// BaseDelay is the delay before the second attempt. Default: 1s.
	BaseDelay time.Duration `yaml:"base_delay"`
	// MaxDelay is the maximum delay between two attempts. Default: 30s.
	MaxDelay time.Duration `yaml:"max_delay"`
	// DefaultHeaders are headers that are sent with every request.
	DefaultHeaders map[string]string `yaml:"default_headers"`
	Auth           Auth              `yaml:"auth"`
}

// Auth configures authentication with a bearer token in a file.
type Auth struct {
	// TokenPath is the path of the file. If it is empty, no token is sent.
	TokenPath string `yaml:"token_path"`
	// TokenCacheTTL is ignored. The token is read for each request.
	TokenCacheTTL time.Duration `yaml:"token_cache_ttl"`
}

// Broker configures the subscription from which the adapter receives its events with source broker.
type Broker struct {
	// SubscriptionID is the ID of the subscription. Replicas with the same ID share the events. Required
	// with events.source broker.
	SubscriptionID string `yaml:"subscription_id"`
	// Topic is the topic of the events. Required with events.source broker.
	Topic string `yaml:"topic"`
}

// Kubernetes configures the cluster of the objects with transport kubernetes.
type Kubernetes struct {
	// APIVersion is ignored. The versions are discovered.
	APIVersion string `yaml:"api_version"`
	// KubeConfigPath is the path of a kubeconfig. If it is empty, the in-cluster configuration is used.
	KubeConfigPath string `yaml:"kube_config_path"`
	// QPS is the maximum number of requests per second. Default: 100.
	QPS float32 `yaml:"qps"`
	// Burst is the maximum number of requests at once. Default: 200.
	Burst int `yaml:"burst"`
}

// Maestro configures where objects with transport maestro are sent: to an Open Cluster Management hub. A Maestro server
// is not supported: its addresses are rejected, and its other settings are ignored.
type Maestro struct {
	// GRPCServerAddress is rejected. It is the address of a Maestro server's gRPC API.
	GRPCServerAddress string `yaml:"grpc_server_address"`
	// HTTPServerAddress is rejected. It is the URL of a Maestro server's REST API.
	HTTPServerAddress string `yaml:"http_server_address"`
	// SourceID is ignored. It is a setting of a Maestro server.
	SourceID string `yaml:"source_id"`
	// ClientID is ignored. It is a setting of a Maestro server.
	ClientID string `yaml:"client_id"`
	// Timeout is the timeout of one attempt.
	Timeout time.Duration `yaml:"timeout"`
	// ServerHealthinessTimeout is ignored. It is a setting of a Maestro server.
	ServerHealthinessTimeout time.Duration `yaml:"server_healthiness_timeout"`
	// RetryAttempts is ignored. It is a setting of a Maestro server.
	RetryAttempts int `yaml:"retry_attempts"`
	// Keepalive is ignored. It is a setting of a Maestro server.
	Keepalive Keepalive `yaml:"keepalive"`
	// Insecure is ignored. It is a setting of a Maestro server.
	Insecure bool `yaml:"insecure"`
	// Auth is ignored. It is a setting of a Maestro server.
	Auth MaestroAuth `yaml:"auth"`
	// KubeConfigPath is the path of a kubeconfig of the hub. ManifestWorks are created in the namespace of the target
	// cluster.
	KubeConfigPath string `yaml:"kube_config_path"`
}

// Keepalive configures the keepalive of the connection.
type Keepalive struct {
	// Time is the time without traffic after which a keepalive ping is sent.
	Time time.Duration `yaml:"time"`
	// Timeout is the time within which the server must respond to the ping.
	Timeout time.Duration `yaml:"timeout"`
}

// MaestroAuth configures how the adapter authenticates to Maestro.
type MaestroAuth struct {
	// Type is the authentication method: tls or none.
	Type      string     `yaml:"type"`
	TLSConfig *TLSConfig `yaml:"tls_config"`
}

// TLSConfig holds the paths of TLS files.
type TLSConfig struct {
	// CAFile is the path of the CA bundle that verifies the server.
	CAFile string `yaml:"ca_file"`
	// CertFile is the path of the adapter's client certificate. It is used with key_file.
	CertFile string `yaml:"cert_file"`
	// KeyFile is the path of the private key of cert_file.
	KeyFile string `yaml:"key_file"`
	// HTTPCAFile is ignored. The address of a Maestro server is rejected.
	HTTPCAFile string `yaml:"http_ca_file"`
}
