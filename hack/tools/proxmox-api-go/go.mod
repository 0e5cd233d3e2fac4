module github.com/hyperfleet/hyperfleet/hack/tools/proxmox-api-go

go 1.26.0

require (
	github.com/Telmate/proxmox-api-go v0.0.0-20240409105641-32c480fe008e // indirect
	github.com/inconshreveable/mousetrap v1.1.0 // indirect
	github.com/joho/godotenv v1.5.1 // indirect
	github.com/spf13/cobra v1.8.0 // indirect
	github.com/spf13/pflag v1.0.5 // indirect
)

tool github.com/Telmate/proxmox-api-go
