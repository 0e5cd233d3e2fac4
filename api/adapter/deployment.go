// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package adapter

import "time"

// Deployment configures `hyperfleet-platform adapter serve`. A flag wins over a HYPERFLEET_*
// variable, that over the file, that over the default.
type Deployment struct {
	Adapter Identity  `yaml:"adapter"`
	Log     LogOutput `yaml:"log"`
	// DebugConfig serves the configuration, redacted, at /config.
	DebugConfig bool    `yaml:"debug_config"`
	Clients     Clients `yaml:"clients"`
	Events      Events  `yaml:"events"`
	// IdentityKeyFile holds the key of the HMAC that objects are stamped with: at least
	// 32 bytes, the same for all replicas of the adapter and for sweep.
	IdentityKeyFile string `yaml:"identity_key_file"`
	// Environment lists the environment variables that task files may read. None else is
	// seen by them.
	Environment []string `yaml:"environment"`
	// EventTimeout bounds the work on one event. Default: 2m.
	EventTimeout time.Duration `yaml:"event_timeout"`
	// HealthAddress serves /healthz and /readyz. Default: :8080.
	HealthAddress string `yaml:"health_address"`
	// MetricsAddress serves /metrics. Default: :9090.
	MetricsAddress string `yaml:"metrics_address"`
}

// Identity is who the adapter is.
type Identity struct {
	// Name is the value of the label hyperfleet.io/adapter and of the reports' adapter:
	// a DNS label. Required.
	Name string `yaml:"name"`
	// Version is the author's version of the task file; it is in every report.
	Version string `yaml:"version"`
	// FrameworkVersion is the version of the program the task file was written for;
	// major and minor have to match.
	FrameworkVersion string `yaml:"frameworkVersion"`
}

// LogOutput says what is logged.
type LogOutput struct {
	// Level is debug, info, warn or error. Default: info.
	Level string `yaml:"level"`
	// Format is json or text. Default: json.
	Format string `yaml:"format"`
	// Output is stdout or stderr. Default: stdout.
	Output string `yaml:"output"`
}

// Sources of events.
const (
	// SourceAPI is the fleet API's change feed.
	SourceAPI = "api"
	// SourceBroker is what Sentinel sends.
	SourceBroker = "broker"
)

// Events say how the adapter hears that a resource has to be looked at.
type Events struct {
	// Source is api or broker. Default: broker where clients.broker is given, else api.
	Source string `yaml:"source"`
	// ResourceType is the collection whose changes are followed, for example clusters; of
	// several adapters each follows by itself. Required with source api, as are none of
	// the fields below.
	ResourceType string `yaml:"resource_type"`
	// ResourceSelector are labels that all have to match.
	ResourceSelector map[string]string `yaml:"resource_selector"`
	// MaxAgeNotReconciled is after what time without news a resource is looked at that is not
	// reconciled. Default: 10s.
	MaxAgeNotReconciled time.Duration `yaml:"max_age_not_reconciled"`
	// MaxAgeReconciled is the same for one that is. Default: 30m.
	MaxAgeReconciled time.Duration `yaml:"max_age_reconciled"`
	// Parallelism is how many resources are handled at once. Default: 8.
	Parallelism int `yaml:"parallelism"`
	// MaxTries is how often an event is tried before it waits for max_age_not_reconciled.
	// Default: 10.
	MaxTries int `yaml:"max_tries"`
}

// FromBroker says whether events come from a broker.
func (d *Deployment) FromBroker() bool {
	if d.Events.Source != "" {
		return d.Events.Source == SourceBroker
	}

	return d.Clients.Broker != Broker{}
}

// Clients are those the adapter speaks to.
type Clients struct {
	HyperFleetAPI HyperFleetAPI `yaml:"hyperfleet_api"`
	Broker        Broker        `yaml:"broker"`
	Kubernetes    Kubernetes    `yaml:"kubernetes"`
	Maestro       *Maestro      `yaml:"maestro"`
}

// MaxAttempts bounds the tries of one call of an API.
const MaxAttempts = 10

// HyperFleetAPI is the fleet API.
type HyperFleetAPI struct {
	// BaseURL without the path, for example http://hyperfleet-api:8000. Required.
	BaseURL string `yaml:"base_url"`
	// CAFile for https, where the system does not know who has signed the API's certificate.
	CAFile string `yaml:"ca_file"`
	// Version of the API. Default: v1.
	Version string `yaml:"version"`
	// Timeout of one try. Default: 10s.
	Timeout time.Duration `yaml:"timeout"`
	// RetryAttempts is the number of tries, at most 10. Default: 3.
	RetryAttempts int `yaml:"retry_attempts"`
	// RetryBackoff is exponential, linear or constant. Default: exponential.
	RetryBackoff string `yaml:"retry_backoff"`
	// BaseDelay before the second try. Default: 1s.
	BaseDelay time.Duration `yaml:"base_delay"`
	// MaxDelay between two tries. Default: 30s.
	MaxDelay time.Duration `yaml:"max_delay"`
	// DefaultHeaders are sent with every call.
	DefaultHeaders map[string]string `yaml:"default_headers"`
	Auth           Auth              `yaml:"auth"`
}

// Auth is a bearer token in a file.
type Auth struct {
	// TokenPath is the file; without it, no token is sent.
	TokenPath string `yaml:"token_path"`
	// TokenCacheTTL is taken and not used: the token is read with each call.
	TokenCacheTTL time.Duration `yaml:"token_cache_ttl"`
}

// Broker is what the adapter hears of its events by.
type Broker struct {
	// SubscriptionID: replicas with the same one share the events. Required with
	// events.source broker.
	SubscriptionID string `yaml:"subscription_id"`
	// Topic that the events are on. Required with events.source broker.
	Topic string `yaml:"topic"`
}

// Kubernetes is the cluster that objects of transport kubernetes live on.
type Kubernetes struct {
	// APIVersion is taken and not used: discovery tells the versions.
	APIVersion string `yaml:"api_version"`
	// KubeConfigPath; empty: in the cluster.
	KubeConfigPath string `yaml:"kube_config_path"`
	// QPS and Burst bound the calls. Default: 100 and 200.
	QPS float32 `yaml:"qps"`
	// Burst: see qps.
	Burst int `yaml:"burst"`
}

// Maestro is where objects of transport maestro are sent.
type Maestro struct {
	// GRPCServerAddress is host:port of the server's gRPC.
	GRPCServerAddress string `yaml:"grpc_server_address"`
	// HTTPServerAddress is the URL of the server's REST API.
	HTTPServerAddress string `yaml:"http_server_address"`
	// SourceID is who the ManifestWorks are from, to the server.
	SourceID string `yaml:"source_id"`
	// ClientID tells connections of one source apart.
	ClientID string `yaml:"client_id"`
	// Timeout of one try.
	Timeout time.Duration `yaml:"timeout"`
	// ServerHealthinessTimeout is for how long the server may be silent.
	ServerHealthinessTimeout time.Duration `yaml:"server_healthiness_timeout"`
	// RetryAttempts is the number of tries.
	RetryAttempts int       `yaml:"retry_attempts"`
	Keepalive     Keepalive `yaml:"keepalive"`
	// Insecure speaks without TLS.
	Insecure bool        `yaml:"insecure"`
	Auth     MaestroAuth `yaml:"auth"`
	// KubeConfigPath of an Open Cluster Management hub: ManifestWorks are then objects in
	// the namespace of the target cluster there, without a Maestro server between.
	KubeConfigPath string `yaml:"kube_config_path"`
}

// Keepalive of the connection.
type Keepalive struct {
	// Time of silence after which the server is asked.
	Time time.Duration `yaml:"time"`
	// Timeout of the answer.
	Timeout time.Duration `yaml:"timeout"`
}

// MaestroAuth says who the adapter is to Maestro.
type MaestroAuth struct {
	// Type is tls or none.
	Type      string     `yaml:"type"`
	TLSConfig *TLSConfig `yaml:"tls_config"`
}

// TLSConfig names files.
type TLSConfig struct {
	// CAFile is whom the server is checked by.
	CAFile string `yaml:"ca_file"`
	// CertFile and key_file are the adapter's own.
	CertFile string `yaml:"cert_file"`
	// KeyFile goes with cert_file.
	KeyFile string `yaml:"key_file"`
	// HTTPCAFile is ca_file for http_server_address.
	HTTPCAFile string `yaml:"http_ca_file"`
}
